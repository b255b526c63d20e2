"""I7: greedy decoding is deterministic, and speculation emits the baseline's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.contract import (
    OWN_NUMBERS,
    Block,
    BlockTrace,
    CellResult,
    Comparison,
    EngineFacts,
    Held,
    Invariant,
    NearTies,
)

BIT_EXACT: Final = NearTies()
SIGMA_UNKNOWN: Final = "sigma_unknown"
UNTOLD: Final = "leave others where two tokens are close, and nothing tells how the engine rounds"
BY_DESIGN: Final = "the engine says that its tokens may differ from the baseline's"


def deterministic(
    result: CellResult,
    blocks: Sequence[Block],
    comparison: Comparison | None,
    trace: BlockTrace | None,
    ties: NearTies = BIT_EXACT,
) -> Invariant:
    """I7: rounds over the same prompts, the baseline and the traced block all have the same tokens.

    In its near-tie form, for engines that are not to be bit-exact, texts may part where `ties` says that it was too
    close to call. A traced block that is another text is then no evidence against the timed ones.
    """
    mismatches = result.values.get("repeat_mismatches")
    if mismatches is None or mismatches.value is None or mismatches.n < 2:
        return Invariant("I7", Held.UNSEEN, "no_repeats", "no prompt set was decoded twice")
    count = {"blocks": mismatches.n}
    if mismatches.value:
        differing = f"{mismatches.value:.0f} blocks or untimed texts"
        message = f"{differing} do not repeat the tokens of the first"
        if ties.by_law:
            message = f"{differing} leave the first one's tokens, and not at a near tie"
        unknown = result.values.get("repeat_unknown")
        if ties.by_law and unknown is not None and unknown.value == mismatches.value:
            return Invariant("I7", Held.UNSEEN, SIGMA_UNKNOWN, f"{differing} {UNTOLD}", count)
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, count)
    near_ties = result.values.get("repeat_near_ties")
    if near_ties and not ties.by_law:
        message = f"{near_ties.value:.0f} texts leave the first one's tokens at a near tie"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, count)
    if comparison is None and result.cell.role.speculative:
        return Invariant("I7", Held.UNSEEN, "no_baseline", "no baseline was measured whose tokens these could be")
    if comparison is not None and not comparison.tokens.compared_tokens:
        message = "no token was compared with the baseline's: acceptance was forced, or texts are drawn by rejection"
        return Invariant("I7", Held.UNSEEN, "not_compared", message, count)
    if comparison is not None and comparison.tokens.lossy:
        return Invariant("I7", Held.UNSEEN, "lossy", BY_DESIGN)
    if ties.by_law:
        repeats = int(near_ties.value or 0) if near_ties is not None else 0
        return but_for_near_ties(mismatches.n, repeats, comparison)
    if comparison is not None and not comparison.tokens.identical:
        first = comparison.tokens.divergences[0]
        message = (
            f"slot {first.slot} leaves the baseline at token {first.position} ({len(comparison.tokens.divergences)} do)"
        )
        return Invariant(
            "I7", Held.BROKEN, "token_mismatch", message, {"divergences": len(comparison.tokens.divergences)}
        )
    if trace is not None and not same_text(trace, blocks):
        message = "the traced block emitted other tokens than the timed ones"
        return Invariant("I7", Held.BROKEN, "trace_mismatch", message, {"prompt_set": trace.prompt_set})
    message = f"{mismatches.n} blocks repeat their tokens" + (" and are the baseline's" if comparison else "")
    return Invariant("I7", Held.HELD, "deterministic", message, {"blocks": mismatches.n})


def drawn_anew(invariant: Invariant, facts: EngineFacts | None) -> Invariant:
    """I7, where texts differ because an engine drew them with random numbers of its own: that breaks nothing."""
    if invariant.held is not Held.BROKEN or facts is None or OWN_NUMBERS not in facts.details:
        return invariant
    return Invariant("I7", Held.UNSEEN, "own_random_numbers", "the engine draws with random numbers of its own")


def but_for_near_ties(blocks: int, repeats: int, comparison: Comparison | None) -> Invariant:
    """Return I7 in its near-tie form. `blocks`: how many repeat; `repeats`: texts that leave the first at a tie."""
    check = comparison.tokens if comparison is not None else None
    leaving = check.mismatches if check is not None else ()
    wrong = sum(d.margin is not None and (d.x is not None or d.rule == "outside") for d in leaving)
    untold = sum(d.untold for d in leaving)
    unknown = len(leaving) - wrong - untold
    behind = check.followed.wrong if check is not None and check.followed is not None else 0
    untold += check.followed.unknown if check is not None and check.followed is not None else 0
    parted = len(check.divergences) - len(leaving) if check is not None else 0
    sigma = check.law.sigma if check is not None and check.law is not None else None
    evidence = {"sigma": sigma, "repeat_near_ties": repeats, "parted": parted, "blocks": blocks}
    if wrong or behind:
        where = f"{wrong} texts leave the baseline's, and not at a near tie"
        message = where if wrong else f"{behind} texts are not greedy behind their near tie"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, {**evidence, "wrong": wrong + behind})
    if unknown:
        message = f"{unknown} texts leave the baseline's, and how close the two tokens are there is not known"
        return Invariant("I7", Held.UNSEEN, "gap_unknown", message, {**evidence, "unknown": unknown})
    if untold:
        return Invariant("I7", Held.UNSEEN, SIGMA_UNKNOWN, f"{untold} texts {UNTOLD}", {**evidence, "unknown": untold})
    message = f"{blocks} blocks repeat their tokens" + (" and are the baseline's" if comparison else "")
    if repeats or parted:
        parts = f"{repeats + parted} texts that part at a near tie"
        message += f", but for {parts}" + (f" (σ {sigma:.2g} logits)" if sigma else "")
    return Invariant("I7", Held.HELD, "deterministic", message, evidence)


def same_text(trace: BlockTrace, blocks: Sequence[Block]) -> bool:
    """True if the traced block has the tokens of the timed blocks of its prompt set, over the length that both have."""
    timed = [b for b in blocks if b.prompt_set == trace.prompt_set]
    return all(same_prefix(mine, theirs) for b in timed for mine, theirs in zip(trace.tokens, b.tokens, strict=True))


def same_prefix(one: Sequence[int], other: Sequence[int]) -> bool:
    """True if two sequences agree over the length that both have."""
    n = min(len(one), len(other))
    return tuple(one[:n]) == tuple(other[:n])

"""Identities that the counts of a block hold, and the ends of its texts.

The engines agree on this. A step verifies accepted + 1 tokens and emits them one by one, until one of them is an
end token (EOS, where these are not ignored) or fills the token limit; what is left of the step is truncated. So only a
slot that ended has truncated tokens, they are of its last step, and that step emitted one token at least. A budget of
steps ends a slot for nothing but an end token, and a budget of tokens lets none stop for its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgate.analysis.checks.experts import check_experts
from specgate.analysis.checks.served import check_served
from specgate.contract import Block, Budget, EngineFacts, Finish
from specgate.contract.samples.counters import ENDED_EARLY
from specgate.errors import InvalidResult


def check_ends(block: Block, budget: Budget, eos: Sequence[int], where: str) -> None:
    """Check the end of every slot of a block whose steps are known. Raises InvalidResult.

    `eos`: the engine's end tokens; () where they are not known. The harness asks for no stop tokens.
    """
    if budget.steps is not None and len(block.accepted) > budget.steps:
        raise InvalidResult(f"{where}: {len(block.accepted)} steps ran, but the budget is {budget.steps} steps")
    for slot, finish in enumerate(block.finish):
        here = f"{where} slot {slot}"
        accepted = [row[slot] for row in block.accepted if row[slot] >= 0]
        check_truncated(block.truncated[slot], finish, accepted, here)
        check_finish(finish, budget, len(block.tokens[slot]), len(accepted), here)
        if not budget.ignore_eos and eos:
            check_end_token(block.tokens[slot], finish, eos, here)


def check_truncated(truncated: int, finish: Finish, accepted: Sequence[int], here: str) -> None:
    """Only the last step of a slot that ended has truncated tokens, and it has emitted one. Raises InvalidResult."""
    if truncated and finish is Finish.STEPS:
        raise InvalidResult(f"{here}: {truncated} truncated tokens, but its finish is steps: nothing has cut it off")
    most = accepted[-1] if accepted else 0
    if truncated > most:
        raise InvalidResult(
            f"{here}: {truncated} truncated tokens, but its last step accepted {most}: it can have lost {most} at most"
        )


def check_finish(finish: Finish, budget: Budget, tokens: int, steps: int, here: str) -> None:
    """The finish is one that the budget allows, and the slot went exactly so far. Raises InvalidResult."""
    if finish in (Finish.EOS, Finish.STOP):
        if budget.ignore_eos:
            raise InvalidResult(f"{here}: its finish is {finish} after {tokens} tokens, but EOS is ignored")
        if finish is Finish.STOP:
            raise InvalidResult(f"{here}: its finish is stop after {tokens} tokens, but no stop tokens were asked for")
    elif finish is Finish.STEPS and steps != budget.steps:
        limit = f"{budget.steps} steps" if budget.steps is not None else f"{budget.new_tokens} tokens"
        raise InvalidResult(f"{here}: its finish is steps after {steps} steps, but the budget is {limit}")
    elif finish is Finish.LENGTH and tokens != budget.new_tokens:
        limit = f"{budget.new_tokens} tokens" if budget.new_tokens is not None else f"{budget.steps} steps"
        raise InvalidResult(f"{here}: its finish is length after {tokens} tokens, but the budget is {limit}")
    if budget.new_tokens is not None and tokens > budget.new_tokens:
        raise InvalidResult(f"{here}: {tokens} tokens, but the budget is {budget.new_tokens} tokens")


def check_end_token(tokens: Sequence[int], finish: Finish, eos: Sequence[int], here: str) -> None:
    """A slot that stopped at EOS has one as its last token, and no slot has gone on after one. Raises InvalidResult."""
    if finish is Finish.EOS and tokens[-1] not in eos:
        raise InvalidResult(f"{here}: its finish is eos, but its last token {tokens[-1]} is none of EOS {tuple(eos)}")
    passed = next((i for i, token in enumerate(tokens[:-1]) if token in eos), None)
    if passed is not None:
        raise InvalidResult(
            f"{here}: token {passed} is EOS ({tokens[passed]}), but {len(tokens) - 1 - passed} more follow it"
        )


def check_block(block: Block, budget: Budget, facts: EngineFacts | None = None) -> None:
    """Check a block that was asked for with `budget`. Raises InvalidResult with the place and the equation that fails.

    Per step and slot: 0 ≤ accepted ≤ drafted ≤ k, or both are −1 (the slot had finished; it then stays so). Per slot:
    emitted tokens = Σ over its steps of (accepted + 1) − truncated, not counting the prefill token. `check_ends`: what
    follows from the end of each slot. Counters are at least 0. Steps counted as `disabled_draft_error` had no draft.
    `experts.py` has what holds for counts of experts.

    `facts`: of the engine that decoded; without them, token ids are checked against no vocabulary.
    """
    where = place_of(block)
    check_counters(block, where)
    check_prompt_lengths(block, where)
    check_ids(block, facts, where)
    if block.served is not None:
        own_lengths = facts is None or facts.sets_lengths
        check_served(block, block.served, budget, where, own_lengths=own_lengths)
        return
    check_rows(block, where)
    check_emitted(block, where)
    check_ends(block, budget, facts.eos_token_ids if facts else (), where)
    check_drafts(block, where)
    check_experts(block, facts, where)


def place_of(block: Block) -> str:
    """Place of a block in its run, for messages."""
    return f"{block.cell.key} set {block.prompt_set} round {block.round}"


def check_counters(block: Block, where: str) -> None:
    """No count is negative. Raises InvalidResult."""
    for name, count in (*block.counters.items(), *((f"truncated[{s}]", n) for s, n in enumerate(block.truncated))):
        if count < 0:
            raise InvalidResult(f"{where}: {name} = {count}: a count is at least 0")


def check_prompt_lengths(block: Block, where: str) -> None:
    """Prompts with lengths of their own have one per slot, of at most the point's context. Raises InvalidResult."""
    lengths = block.prompt_tokens
    if lengths and (len(lengths) != len(block.tokens) or not 1 <= min(lengths) <= max(lengths) <= block.point.context):
        raise InvalidResult(
            f"{where}: prompt_tokens {lengths}: {len(block.tokens)} lengths of 1 to {block.point.context} were expected"
        )


def check_ids(block: Block, facts: EngineFacts | None, where: str) -> None:
    """Every token id is one of the vocabulary. Raises InvalidResult."""
    for slot, tokens in enumerate(block.tokens):
        lowest, highest = min(tokens, default=0), max(tokens, default=0)
        if not tokens or lowest < 0:
            defect = f"token id {lowest}: an id is at least 0" if tokens else "no token, not even prefill's"
            raise InvalidResult(f"{where} slot {slot}: {defect}")
        if facts is not None and highest >= facts.vocab:
            raise InvalidResult(
                f"{where} slot {slot}: token id {highest} at index {tokens.index(highest)}, but the vocabulary has "
                f"{facts.vocab}"
            )


def check_rows(block: Block, where: str) -> None:
    """Steps and slots are as many everywhere, and every step accepts what it may. Raises InvalidResult."""
    batch, k = len(block.tokens), block.role.k
    widths = {len(row) for row in (*block.accepted, *block.drafted, block.truncated, block.finish)}
    heights = {len(block.accepted), len(block.drafted), len(block.step_ns)}
    if widths != {batch} or len(heights) != 1:
        raise InvalidResult(f"{where}: {batch} slots, but rows of {widths} slots and {heights} steps")
    finished = [False] * batch
    for step, (accepts, drafts) in enumerate(zip(block.accepted, block.drafted, strict=True)):
        for slot, (a, d) in enumerate(zip(accepts, drafts, strict=True)):
            if not (a == d == -1 or 0 <= a <= d <= k):
                raise InvalidResult(f"{where} step {step} slot {slot}: accepted {a} of {d} drafts at k = {k}")
            if finished[slot] and a >= 0:
                raise InvalidResult(f"{where} step {step} slot {slot}: accepted {a}, but it had finished before")
            finished[slot] = a < 0


def check_emitted(block: Block, where: str) -> None:
    """Every slot's tokens account for its steps. Raises InvalidResult."""
    for slot, tokens in enumerate(block.tokens):
        accepted = [row[slot] for row in block.accepted if row[slot] >= 0]
        expected = sum(accepted) + len(accepted) - block.truncated[slot]
        if len(tokens) - 1 != expected:
            raise InvalidResult(
                f"{where} slot {slot}: emitted {len(tokens) - 1}, but steps + accepted - truncated = "
                f"{len(accepted)} + {sum(accepted)} - {block.truncated[slot]}"
            )


def check_drafts(block: Block, where: str) -> None:
    """The counters of drafts are what the steps say. Raises InvalidResult."""
    if (ended := block.counters.get(ENDED_EARLY, 0)) > shortened(block):
        raise InvalidResult(
            f"{where}: {ENDED_EARLY} = {ended}, but {shortened(block)} request-steps drafted fewer than K tokens, and "
            "one at least"
        )
    if draft_errors(block) > undrafted(block):
        raise InvalidResult(
            f"{where}: disabled_draft_error = {draft_errors(block)}, but {undrafted(block)} request-steps had no draft"
        )


def shortened(block: Block) -> int:
    """Request-steps that drafted a token at least, and fewer than K."""
    return sum(0 < d < block.role.k for row in block.drafted for d in row)


def undrafted(block: Block) -> int:
    """Request-steps that decoded without a draft; in a baseline block, all of them."""
    return sum(d == 0 for row in block.drafted for d in row)


def draft_errors(block: Block) -> int:
    """Request-steps that had no draft because it could not be used."""
    return block.counters.get("disabled_draft_error", 0)

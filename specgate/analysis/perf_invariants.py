"""PERF_MODE: seven invariants of a decode loop. Each is judged by evidence that the engine does not make itself.

    I1  no GEMM fall-back: every kernel of a traced block is one of the engine's own
    I2  no untuned kernel: every product of a block found the configuration that was tuned for its weight
    I3  multi-token mode: a request stops drafting only when it ends (EOS, stop token, limit)
    I4  no integrity failure of cache spans or attention masks
    I5  per-slot output: every slot's tokens account for its steps
    I6  no copy to the host, no wait and no allocation inside the loop
    I7  greedy decoding is deterministic, and speculation emits the baseline's tokens

Pure: the same blocks and traces give the same certificate, so it can be recomputed offline. What cannot be observed is
reported as not observable, never as held. A trace that the engine brought itself can break an invariant, since it then
testifies against itself; it can hold none. So it is with what an engine's log says. A server's own profiler, which the
harness starts and whose file the harness reads, can do both, and is named beside what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate.analysis.checks.drafting import left_multi_token_mode
from specgate.analysis.traces.cuda_calls import ALLOCATIONS, TO_HOST, WAITING_COPIES, WAITS, count
from specgate.analysis.traces.families import strangers
from specgate.core import (
    Block,
    BlockTrace,
    Budget,
    CellResult,
    Comparison,
    EngineFacts,
    Held,
    Invariant,
    NearTies,
    Plan,
)

BIT_EXACT: Final = NearTies()
IDS: Final = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")
"""The invariants, in the order of a certificate."""
SHOWN_KERNELS: Final = 20

Evidence = Mapping[str, float | int | str | None]


def certify(
    result: CellResult,
    blocks: Sequence[Block],
    comparison: Comparison | None,
    facts: EngineFacts | None,
    trace: BlockTrace | None,
    budget: Budget,
    ties: NearTies = BIT_EXACT,
    *,
    outside: bool = False,
) -> tuple[Invariant, ...]:
    """The seven invariants of one cell.

    `blocks`: its timed blocks, without warm-up, each of which was asked for with `budget`.
    `comparison`: None for a baseline cell, and where no baseline was measured.
    `trace`: its traced block; None where none was traced.
    `ties`: where it has units in the last place, a text may leave another one at a near tie.
    `outside`: whether what a server's client sees of I3 and I5 counts, which it did not in runs stored before it did.
    """
    found = (
        from_outside(own_kernels(facts, trace), trace),
        tuned_kernels(blocks),
        always_drafting(result, blocks, budget, outside=outside),
        counted_zero("I4", "kv_integrity_failures", blocks, "kv_integrity"),
        laid_out(result, blocks, outside=outside),
        from_outside(quiet_loop(trace), trace),
        deterministic(result, blocks, comparison, trace, ties),
    )
    return tuple(as_the_engine_says(invariant, trace) for invariant in found)


def certificates(
    plan: Plan,
    cells: Sequence[CellResult],
    comparisons: Sequence[Comparison],
    blocks: Sequence[Block],
    engines: Mapping[str, EngineFacts],
    traces: Mapping[str, BlockTrace],
    ties: NearTies = BIT_EXACT,
) -> dict[str, tuple[Invariant, ...]]:
    """Cell key → its certificate, for the scenarios that ask for PERF_MODE. `blocks` must come from whole rounds."""
    compared = {c.cell: c for c in comparisons}
    return {
        result.cell.key: certify(
            result,
            [b for b in blocks if b.cell == result.cell and not b.warmup],
            compared.get(result.cell),
            engines.get(result.cell.point.key),
            traces.get(result.cell.key),
            plan.scenarios[result.cell.point.scenario].budget,
            ties,
            outside=plan.scenarios[result.cell.point.scenario].statistics > 3,
        )
        for result in cells
        if plan.scenarios[result.cell.point.scenario].perf_mode
    }


def from_outside(found: Invariant, trace: BlockTrace | None) -> Invariant:
    """`found`, or not observable where it holds by nothing but a trace that the engine brought itself."""
    if trace is None or trace.source == "profiler" or found.held is not Held.HELD:
        return found
    if trace.source == "server-profiler":
        return replace(found, message=f"{found.message}, by the server's own profiler")
    message = f"the engine brought its own trace, and says: {found.message}"
    return Invariant(found.id, Held.UNSEEN, "engines_own_word", message, found.evidence)


def as_the_engine_says(found: Invariant, trace: BlockTrace | None) -> Invariant:
    """`found`, or broken where the engine's own log or flags say so. What else they say is added to what is unseen."""
    said = [f for f in trace.findings if f.invariant == found.id] if trace is not None else []
    if found.held is not Held.UNSEEN:
        said = [f for f in said if f.breaks and found.held is Held.HELD]
    if not said:
        return found
    evidence = {**found.evidence, **{f.where: f.count for f in said}}
    first = next((f for f in said if f.breaks), said[0])
    words = f"{first.meaning}: {first.where}: {first.text}" + (f" ({first.count} times)" if first.count > 1 else "")
    if first.breaks:
        return Invariant(found.id, Held.BROKEN, first.reason_code, words, {**evidence, "source": "engine"})
    return replace(found, message=f"{found.message}; {words}", evidence=evidence)


def own_kernels(facts: EngineFacts | None, trace: BlockTrace | None) -> Invariant:
    """I1: every kernel of the traced block is on the engine's list of its own kernels, or on that of the user."""
    if trace is None or trace.unseen is not None:
        return unseen("I1", trace)
    if trace.allowed is None and (facts is None or facts.kernels is None):
        table = most_frequent(trace.kernels) if trace.source == "server-profiler" else {}
        return Invariant("I1", Held.UNSEEN, "no_allow_list", "the engine names no kernels of its own to allow", table)
    if trace.allowed is not None:
        foreign, whose = strangers(trace.kernels, trace.allowed), "on the list of those that are allowed"
    else:
        own = facts.kernels if facts is not None and facts.kernels is not None else ()
        foreign, whose = {name: n for name, n in trace.kernels.items() if name not in own}, "the engine's own"
    if foreign:
        worst = max(foreign, key=lambda name: foreign[name])
        message = f"{len(foreign)} kernels in the loop are not {whose}, e.g. {worst} ({foreign[worst]} launches)"
        shown = foreign if trace.allowed is None else most_frequent(foreign)
        return Invariant("I1", Held.BROKEN, "fallback_kernel", message, shown)
    launches = sum(trace.kernels.values())
    message = f"{launches} launches of {len(trace.kernels)} kernels in {trace.steps} steps, all {whose}"
    return Invariant("I1", Held.HELD, "own_kernels", message, {"launches": launches, "source": trace.source})


def most_frequent(kernels: Mapping[str, int]) -> dict[str, int]:
    """The kernels that are launched most, as many as a page can show: a server has hundreds."""
    return dict(sorted(kernels.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_KERNELS])


def tuned_kernels(blocks: Sequence[Block]) -> Invariant:
    """I2: every look-up of a tuned configuration in the timed blocks found one."""
    total, hits = (total_of(name, blocks) for name in ("tuned_total", "tuned_hits"))
    if not total or hits is None:
        return Invariant("I2", Held.UNSEEN, "no_tuning_table", "the engine counts no look-ups of tuned configurations")
    evidence = {"tuned_hits": hits, "tuned_total": total}
    if hits < total:
        message = f"{total - hits} of {total} look-ups found no tuned configuration"
        return Invariant("I2", Held.BROKEN, "untuned_kernel", message, evidence)
    return Invariant("I2", Held.HELD, "all_tuned", f"all {total} look-ups found their tuned configuration", evidence)


def always_drafting(result: CellResult, blocks: Sequence[Block], budget: Budget, *, outside: bool = False) -> Invariant:
    """I3: no request-step had fewer drafts than K without a reason, counted by the harness from the steps.

    A server shows no steps. That it had steps without drafts follows from its totals. That it had none is seen from
    `outside` only where few of its steps can have been (`undrafted_at_most`).
    """
    if not result.cell.role.speculative:
        return Invariant("I3", Held.HELD, "nothing_to_leave", "a baseline block drafts nothing")
    if not blocks:
        return Invariant("I3", Held.UNSEEN, "not_counted", "no block was measured")
    name, found = "disabled_multitoken_other", left_multi_token_mode(blocks, budget)
    if found is None:
        name, found = "undrafted_steps", total_of("undrafted_steps", blocks) or 0
        if not found:
            most = undrafted_at_most(blocks) if outside else None
            return not_counted() if most is None else drafting_bound(most, blocks)
    message = f"{name} = {found} over {len(blocks)} timed blocks"
    if found:
        return Invariant("I3", Held.BROKEN, "left_multi_token_mode", message, {name: found})
    return Invariant("I3", Held.HELD, "counted_zero", message, {name: found})


def not_counted() -> Invariant:
    return Invariant("I3", Held.UNSEEN, "not_counted", "a server does not show which of its steps had drafts")


def undrafted_at_most(blocks: Sequence[Block]) -> int | None:
    """How many request-steps of a server's `blocks` can have had no draft; None where it does not count its steps.

    With S steps that drafted, A accepted drafts, E tokens emitted behind the first, t tokens cut off at the ends of
    requests and u steps without a draft, S + A + u − t = E. At most K tokens of a request are cut off. So u is at most
    E − S − A + K requests. Where every chunk behind the first is a step, and there are S, u is 0.
    """
    most = 0
    for block in blocks:
        record = block.served.acceptance if block.served else None
        if record is None or block.served is None:
            return None
        chunks = sum(len(r.chunk_ns) - 1 for r in block.served.requests)
        if chunks != record.steps:
            most += max(0, record.k * len(block.tokens) - record.truncated)
    return most


UNDRAFTED: Final = 0.02
"""The largest share of steps that may be in doubt for drafting to be seen from outside: the last steps of requests."""


def drafting_bound(most: int, blocks: Sequence[Block]) -> Invariant:
    """I3 of a server that has counted no step without a draft, of which `most` can have been without."""
    steps = sum(b.served.acceptance.steps for b in blocks if b.served and b.served.acceptance)
    evidence: Evidence = {
        "undrafted_at_most": most,
        "drafted_steps": steps,
        "source": "the server's counters and its stream",
    }
    if most > UNDRAFTED * steps:
        message = f"{most} of {steps + most} steps can have been without a draft: too many to tell"
        return Invariant("I3", Held.UNSEEN, "not_counted", message, evidence)
    message = f"all {steps} steps drafted, by the server's counters" + (
        f"; at the requests' ends at most {most} more can have been without a draft" if most else " and its stream"
    )
    return Invariant("I3", Held.HELD, "drafting_seen", message, evidence)


def counted_zero(id_: str, counter: str, blocks: Sequence[Block], broken: str) -> Invariant:
    """I4: a counter of the engine that must be 0 in every timed block. `broken`: the reason code of a broken one."""
    found = total_of(counter, blocks)
    if found is None:
        return Invariant(id_, Held.UNSEEN, "not_counted", f"the engine does not count {counter} in every block")
    held = Held.BROKEN if found else Held.HELD
    message = f"{counter} = {found} over {len(blocks)} timed blocks"
    return Invariant(id_, held, broken if found else "counted_zero", message, {counter: found})


def laid_out(result: CellResult, blocks: Sequence[Block], *, outside: bool = False) -> Invariant:
    """I5: the tokens of every slot account for its steps. The measurement checks this identity; a cell that breaks it
    has failed.

    A server shows no steps. Seen from `outside`, each of its answers has a stream of its own, whose tokens are as many
    as its usage record and all chunks say, and those of all answers account for the server's counters.
    """
    if not blocks or result.status == "failed":
        return Invariant("I5", Held.BROKEN, "counter_identity", result.reason or "no block was measured")
    if outside and all(streams_of_their_own(b) for b in blocks):
        answers = sum(len(b.tokens) for b in blocks)
        message = f"each of {answers} answers has its own stream, with as many tokens as its chunks and usage say"
        return Invariant("I5", Held.HELD, "per_answer", message, {"answers": answers})
    if any(b.served is not None for b in blocks):
        return Invariant("I5", Held.UNSEEN, "no_steps", "a server does not show the steps of its slots")
    slots = sum(len(b.tokens) for b in blocks)
    message = f"the tokens of {slots} slots in {len(blocks)} blocks account for their own steps"
    return Invariant("I5", Held.HELD, "per_slot", message, {"slots": slots})


def streams_of_their_own(block: Block) -> bool:
    """Whether each slot is an answer of a server whose chunks hold just its tokens."""
    if block.served is None or len(block.served.requests) != len(block.tokens):
        return False
    return all(sum(r.chunk_tokens) == len(t) for r, t in zip(block.served.requests, block.tokens, strict=True))


def quiet_loop(trace: BlockTrace | None) -> Invariant:
    """I6: the traced block has no copy to the host, no wait and no allocation."""
    if trace is None or trace.unseen is not None:
        return unseen("I6", trace)
    found = {
        "d2h_in_loop": count(trace.copies, TO_HOST),
        "sync_in_loop": count(trace.calls, WAITS) + count(trace.calls, WAITING_COPIES),
        "alloc_in_loop": count(trace.calls, ALLOCATIONS),
    }
    if trace.source == "server-profiler" and any(found.values()):
        return counted_per_step(trace, found)
    for code, times in found.items():
        if times:
            said = {"d2h_in_loop": "copies to the host", "sync_in_loop": "waits", "alloc_in_loop": "allocations"}[code]
            return Invariant("I6", Held.BROKEN, code, f"{times} {said} in {trace.steps} steps of the loop", found)
    launches = sum(trace.calls.values())
    message = f"no copy to the host, wait or allocation among {launches} CUDA calls in {trace.steps} steps"
    return Invariant("I6", Held.HELD, "quiet", message, {**found, "source": trace.source})


def counted_per_step(trace: BlockTrace, found: Mapping[str, int]) -> Invariant:
    """I6 of a server: broken, with how much of it there is in a step.

    A server has to hand out tokens, and copies them to the host in every step. How many bytes these are, and whether
    its loop waits for them, makes the difference.
    """
    steps, loop = max(1, trace.steps), trace.loop
    copies, waits, allocations = (found[code] / steps for code in ("d2h_in_loop", "sync_in_loop", "alloc_in_loop"))
    size = f" ({loop.bytes_to_host / steps:,.0f} bytes)" if loop and loop.bytes_to_host is not None else ""
    elsewhere = (
        f" ({loop.waits_elsewhere / steps:.2f} on other threads than the loop's)"
        if loop and loop.waits_elsewhere is not None and waits
        else ""
    )
    message = (
        f"per step {copies:.2f} copies to the host{size}, {waits:.2f} waits{elsewhere} and {allocations:.2f} "
        f"allocations, in {trace.steps} steps"
    )
    evidence: dict[str, float | int | str | None] = {**found, "steps": trace.steps, "source": trace.source}
    if loop is not None:
        evidence |= {
            "bytes_to_host": loop.bytes_to_host,
            "waits_elsewhere": loop.waits_elsewhere,
            "gpu_busy_share": round(loop.busy_share, 4),
            "longest_gap_ns": loop.longest_gap_ns,
        }
    code = next(code for code, times in found.items() if times)
    return Invariant("I6", Held.BROKEN, code, message, evidence)


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
    if ties.ulps:
        return but_for_near_ties(result, comparison, ties)
    mismatches = result.values.get("repeat_mismatches")
    if mismatches is None or mismatches.value is None or mismatches.n < 2:
        return Invariant("I7", Held.UNSEEN, "no_repeats", "no prompt set was decoded twice")
    if mismatches.value:
        message = f"{mismatches.value:.0f} of {mismatches.n} blocks do not repeat the tokens of the first"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, {"blocks": mismatches.n})
    if near_ties := result.values.get("repeat_near_ties"):
        message = f"{near_ties.value:.0f} texts leave the first one's tokens at a near tie"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, {"blocks": mismatches.n})
    if comparison is None and result.cell.role.speculative:
        return Invariant("I7", Held.UNSEEN, "no_baseline", "no baseline was measured whose tokens these could be")
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


def but_for_near_ties(result: CellResult, comparison: Comparison | None, ties: NearTies) -> Invariant:
    """I7 in its near-tie form."""
    mismatches = result.values.get("repeat_mismatches")
    if mismatches is None or mismatches.value is None or mismatches.n < 2:
        return Invariant("I7", Held.UNSEEN, "no_repeats", "no prompt set was decoded twice")
    if mismatches.value:
        message = f"{mismatches.value:.0f} of {mismatches.n} blocks leave the first one's tokens, and not at a near tie"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, {"blocks": mismatches.n})
    if comparison is None and result.cell.role.speculative:
        return Invariant("I7", Held.UNSEEN, "no_baseline", "no baseline was measured whose tokens these could be")
    found = result.values.get("repeat_near_ties")
    repeats = int(found.value or 0) if found is not None else 0
    check = comparison.tokens if comparison is not None else None
    wrong = len(check.mismatches) if check is not None else 0
    behind = check.followed.wrong if check is not None and check.followed is not None else 0
    parted = len(check.divergences) - wrong if check is not None else 0
    evidence = {"near_tie_ulps": ties.ulps, "repeat_near_ties": repeats, "parted": parted, "blocks": mismatches.n}
    if wrong or behind:
        where = f"{wrong} texts leave the baseline's, and not at a near tie"
        message = where if wrong else f"{behind} texts are not greedy behind their near tie"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, {**evidence, "wrong": wrong + behind})
    message = f"{mismatches.n} blocks repeat their tokens" + (" and are the baseline's" if comparison else "")
    if repeats or parted:
        parts = f"{repeats + parted} texts that part at a near tie"
        message += f", but for {parts} (at most {ties.ulps:g} units in the last place)"
    return Invariant("I7", Held.HELD, "deterministic", message, evidence)


def same_text(trace: BlockTrace, blocks: Sequence[Block]) -> bool:
    """Whether the traced block has the same tokens as the timed blocks of its prompt set, over the length that both
    have.
    """
    timed = [b for b in blocks if b.prompt_set == trace.prompt_set]
    return all(same_prefix(mine, theirs) for b in timed for mine, theirs in zip(trace.tokens, b.tokens, strict=True))


def same_prefix(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two sequences agree over the length that both have."""
    n = min(len(one), len(other))
    return tuple(one[:n]) == tuple(other[:n])


def unseen(id_: str, trace: BlockTrace | None) -> Invariant:
    """An invariant that is not observable, because no block was traced or nothing could be observed of it."""
    why = "no block was traced" if trace is None else trace.unseen or ""
    return Invariant(id_, Held.UNSEEN, "not_traced", why)


def total_of(counter: str, blocks: Sequence[Block]) -> int | None:
    """The counter's sum over the blocks; None where one of them lacks it."""
    values = [b.counters.get(counter) for b in blocks]
    return None if not values or None in values else sum(v for v in values if v is not None)

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
from specgate.core import Block, BlockTrace, Budget, CellResult, Comparison, EngineFacts, Held, Invariant, Plan

IDS: Final = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")
"""The invariants, in the order of a certificate."""
Evidence = Mapping[str, float | int | str | None]


def certify(
    result: CellResult,
    blocks: Sequence[Block],
    comparison: Comparison | None,
    facts: EngineFacts | None,
    trace: BlockTrace | None,
    budget: Budget,
) -> tuple[Invariant, ...]:
    """The seven invariants of one cell.

    `blocks`: its timed blocks, without warm-up, each of which was asked for with `budget`.
    `comparison`: None for a baseline cell.
    `trace`: its traced block; None where none was traced.
    """
    found = (
        from_outside(own_kernels(facts, trace), trace),
        tuned_kernels(blocks),
        always_drafting(result, blocks, budget),
        counted_zero("I4", "kv_integrity_failures", blocks, "kv_integrity"),
        laid_out(result, blocks),
        from_outside(quiet_loop(trace), trace),
        deterministic(result, blocks, comparison, trace),
    )
    return tuple(as_the_engine_says(invariant, trace) for invariant in found)


def certificates(
    plan: Plan,
    cells: Sequence[CellResult],
    comparisons: Sequence[Comparison],
    blocks: Sequence[Block],
    engines: Mapping[str, EngineFacts],
    traces: Mapping[str, BlockTrace],
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
        return Invariant(found.id, Held.BROKEN, first.reason_code, words, evidence)
    return replace(found, message=f"{found.message}; {words}", evidence=evidence)


def own_kernels(facts: EngineFacts | None, trace: BlockTrace | None) -> Invariant:
    """I1: every kernel of the traced block is on the engine's list of its own kernels, or on that of the user."""
    if trace is None or trace.unseen is not None:
        return unseen("I1", trace)
    if trace.allowed is None and (facts is None or facts.kernels is None):
        table = trace.kernels if trace.source == "server-profiler" else {}
        return Invariant("I1", Held.UNSEEN, "no_allow_list", "the engine names no kernels of its own to allow", table)
    if trace.allowed is not None:
        foreign, whose = strangers(trace.kernels, trace.allowed), "on the list of those that are allowed"
    else:
        own = facts.kernels if facts is not None and facts.kernels is not None else ()
        foreign, whose = {name: n for name, n in trace.kernels.items() if name not in own}, "the engine's own"
    if foreign:
        worst = max(foreign, key=lambda name: foreign[name])
        message = f"{len(foreign)} kernels in the loop are not {whose}, e.g. {worst} ({foreign[worst]} launches)"
        return Invariant("I1", Held.BROKEN, "fallback_kernel", message, foreign)
    launches = sum(trace.kernels.values())
    message = f"{launches} launches of {len(trace.kernels)} kernels in {trace.steps} steps, all {whose}"
    return Invariant("I1", Held.HELD, "own_kernels", message, {"launches": launches, "source": trace.source})


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


def always_drafting(result: CellResult, blocks: Sequence[Block], budget: Budget) -> Invariant:
    """I3: no request-step had fewer drafts than K without a reason, counted by the harness from the steps.

    A server shows no steps. That it had steps without drafts follows from its totals; that it had none does not, since
    these cancel with tokens that were cut off.
    """
    if not result.cell.role.speculative:
        return Invariant("I3", Held.HELD, "nothing_to_leave", "a baseline block drafts nothing")
    if not blocks:
        return Invariant("I3", Held.UNSEEN, "not_counted", "no block was measured")
    name, found = "disabled_multitoken_other", left_multi_token_mode(blocks, budget)
    if found is None:
        name, found = "undrafted_steps", total_of("undrafted_steps", blocks) or 0
        if not found:
            return Invariant("I3", Held.UNSEEN, "not_counted", "a server does not show which of its steps had drafts")
    message = f"{name} = {found} over {len(blocks)} timed blocks"
    if found:
        return Invariant("I3", Held.BROKEN, "left_multi_token_mode", message, {name: found})
    return Invariant("I3", Held.HELD, "counted_zero", message, {name: found})


def counted_zero(id_: str, counter: str, blocks: Sequence[Block], broken: str) -> Invariant:
    """I4: a counter of the engine that must be 0 in every timed block. `broken`: the reason code of a broken one."""
    found = total_of(counter, blocks)
    if found is None:
        return Invariant(id_, Held.UNSEEN, "not_counted", f"the engine does not count {counter} in every block")
    held = Held.BROKEN if found else Held.HELD
    message = f"{counter} = {found} over {len(blocks)} timed blocks"
    return Invariant(id_, held, broken if found else "counted_zero", message, {counter: found})


def laid_out(result: CellResult, blocks: Sequence[Block]) -> Invariant:
    """I5: the tokens of every slot account for its steps. The measurement checks this identity; a cell that breaks it
    has failed.
    """
    if not blocks or result.status == "failed":
        return Invariant("I5", Held.BROKEN, "counter_identity", result.reason or "no block was measured")
    if any(b.served is not None for b in blocks):
        return Invariant("I5", Held.UNSEEN, "no_steps", "a server does not show the steps of its slots")
    slots = sum(len(b.tokens) for b in blocks)
    message = f"the tokens of {slots} slots in {len(blocks)} blocks account for their own steps"
    return Invariant("I5", Held.HELD, "per_slot", message, {"slots": slots})


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
    result: CellResult, blocks: Sequence[Block], comparison: Comparison | None, trace: BlockTrace | None
) -> Invariant:
    """I7: rounds over the same prompts, the baseline and the traced block all have the same tokens."""
    mismatches = result.values.get("repeat_mismatches")
    if mismatches is None or mismatches.value is None or mismatches.n < 2:
        return Invariant("I7", Held.UNSEEN, "no_repeats", "no prompt set was decoded twice")
    if mismatches.value:
        message = f"{mismatches.value:.0f} of {mismatches.n} blocks do not repeat the tokens of the first"
        return Invariant("I7", Held.BROKEN, "token_mismatch", message, {"blocks": mismatches.n})
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

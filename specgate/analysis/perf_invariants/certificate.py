"""The certificate of a cell: its seven invariants, after what its engine says of itself was heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate.analysis.perf_invariants.drafting import always_drafting
from specgate.analysis.perf_invariants.loop import laid_out, own_kernels, quiet_loop, tuned_kernels
from specgate.analysis.perf_invariants.same_texts import BIT_EXACT, deterministic, drawn_anew
from specgate.analysis.perf_invariants.spans import intact
from specgate.contract import (
    Block,
    BlockTrace,
    Budget,
    CellResult,
    Comparison,
    EngineFacts,
    Finding,
    Held,
    Invariant,
    NearTies,
    Plan,
)

IDS: Final = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")

"""The invariants, in the order of a certificate."""


def certify(
    result: CellResult,
    blocks: Sequence[Block],
    comparison: Comparison | None,
    facts: EngineFacts | None,
    trace: BlockTrace | None,
    budget: Budget,
    ties: NearTies = BIT_EXACT,
) -> tuple[Invariant, ...]:
    """The seven invariants of one cell.

    `blocks`: its timed blocks, without warm-up, each of which was asked for with `budget`.
    `comparison`: None for a baseline cell, and where no baseline was measured.
    `trace`: its traced block; None where none was traced.
    `ties`: where it has units in the last place, a text may leave another one at a near tie.
    """
    invariants = (
        from_outside(own_kernels(facts, trace), trace),
        from_outside(tuned_kernels(blocks, trace), trace),
        always_drafting(result, blocks, budget, facts),
        from_outside(intact(blocks, trace), trace),
        laid_out(result, blocks),
        from_outside(quiet_loop(trace), trace),
        drawn_anew(deterministic(result, blocks, comparison, trace, ties), facts),
    )
    return tuple(as_the_engine_says(invariant, trace) for invariant in invariants)


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
        )
        for result in cells
        if plan.scenarios[result.cell.point.scenario].perf_mode
    }


def from_outside(invariant: Invariant, trace: BlockTrace | None) -> Invariant:
    """`invariant`, or not observable where it holds by nothing but a trace that the engine brought itself."""
    if trace is None or trace.source == "profiler" or invariant.held is not Held.HELD:
        return invariant
    if trace.source == "server-profiler":
        return replace(invariant, message=f"{invariant.message}, by the server's own profiler")
    message = f"the engine brought its own trace, and says: {invariant.message}"
    return Invariant(invariant.id, Held.UNSEEN, "engines_own_word", message, invariant.evidence)


def as_the_engine_says(invariant: Invariant, trace: BlockTrace | None) -> Invariant:
    """Add the findings in the engine's own log or flags to `invariant`; one that breaks it decides."""
    findings = [f for f in trace.findings if f.invariant == invariant.id] if trace is not None else []
    if invariant.held is not Held.UNSEEN:
        findings = [f for f in findings if f.breaks and invariant.held is Held.HELD]
    if not findings:
        return invariant
    evidence = {**invariant.evidence, **{f.where: f.count for f in findings}}
    first = next((f for f in findings if f.breaks), None)
    if first is not None:
        return Invariant(
            invariant.id, Held.BROKEN, first.reason_code, in_words(first), {**evidence, "source": "engine"}
        )
    return replace(invariant, message="; ".join((invariant.message, *map(in_words, findings))), evidence=evidence)


def in_words(finding: Finding) -> str:
    """Return what an engine says, and where it says so."""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    return f"{finding.meaning}: {finding.where}: {finding.text}{times}"

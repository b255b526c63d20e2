"""Energy of a cell's blocks by the GPU's own counter, and what speculation changes of it.

The watch reads the counter (`nvmlDeviceGetTotalEnergyConsumption`, mJ) ten times per second. Between two readings the
power counts as constant. The power itself is no substitute: recent GPUs give its mean over the last second, in which
blocks of both roles lie.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from specgate.analysis.grouping import grouped
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.machine.conditions import watched_by
from specgate.analysis.paired_blocks import paired, speedup
from specgate.analysis.rounds import pairs_of
from specgate.contract import BetweenRuns, Block, CellResult, Comparison, Plan, Value
from specgate.contract.conditions import Conditions, Sample, clock_readings

PER_TOKEN: Final = "joules_per_token"
RATIO: Final = "energy_per_token_ratio"
SHORTEST_NS: Final = 500_000_000
"""Blocks that last less have no energy: the counter moves on every 0.1 s, and both ends of a block fall in between."""
LONGEST_GAP_NS: Final = 1_000_000_000
"""Readings further apart than this do not tell what was drawn within."""

Curve = Sequence[tuple[int, float]]
"""(ns on the monotonic clock, joules), both ascending."""


@dataclass(frozen=True, slots=True)
class Metered:
    """A block with the energy that the GPUs drew from its request to its result, and the tokens that it came to.

    The prefill tokens count in blocks that prefill themselves.
    """

    block: Block
    joules: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Joules per token."""
        return self.joules / self.tokens


def metered(
    plan: Plan, blocks: Iterable[Block], samples: Sequence[Sample], conditions: Mapping[str, Conditions]
) -> list[Metered]:
    """The measured blocks whose energy is known. Points whose GPU was never seen at work have none."""
    watches = grouped(samples, lambda sample: sample.worker_generation)
    curves = {generation: curve_of(watch) for generation, watch in watches.items()}
    known = []
    for block in blocks:
        watch, here = watched_by(block, watches), conditions.get(block.point.key)
        if block.warmup or block.span_ns is None or watch is None or here is None or not here.gpu.seen_at_work:
            continue
        whole = block.own_prefill or plan.scenarios[block.point.scenario].whole_requests
        tokens = sum(map(len, block.tokens)) if whole else block.emitted
        joules = between(curves[watch], *block.span_ns)
        if joules and tokens:
            known.append(Metered(block, joules, tokens))
    return known


def curve_of(samples: Iterable[Sample]) -> Curve:
    """The counter over time, in joules; empty where the driver began to count anew."""
    readings = (reading for sample in samples for reading in clock_readings(sample))
    curve = sorted((r.monotonic_ns, r.energy_mj / 1000) for r in readings if r.energy_mj is not None)
    return curve if all(a[1] <= b[1] for a, b in pairwise(curve)) else ()


def between(curve: Curve, begin_ns: int, end_ns: int) -> float | None:
    """The joules from one time to another; None where they lie too near together, or readings too far apart."""
    ends = [at(curve, ns) for ns in (begin_ns, end_ns)]
    if end_ns - begin_ns < SHORTEST_NS or ends[0] is None or ends[1] is None:
        return None
    return ends[1] - ends[0]


def at(curve: Curve, ns: int) -> float | None:
    """The counter at a time, between the readings around it; None where there are none so near."""
    place = bisect_left(curve, ns, key=lambda reading: reading[0])
    if place == len(curve) or (place == 0 and curve[0][0] > ns):
        return None
    (before_ns, before), (after_ns, after) = curve[max(0, place - 1)], curve[place]
    if after_ns - before_ns > LONGEST_GAP_NS:
        return None
    share = (ns - before_ns) / (after_ns - before_ns) if after_ns > before_ns else 0.0
    return before + share * (after - before)


def with_energy(
    plan: Plan,
    cells: Sequence[CellResult],
    comparisons: Sequence[Comparison],
    known: Sequence[Metered],
    between_runs: Mapping[str, BetweenRuns],
) -> tuple[tuple[CellResult, ...], tuple[Comparison, ...]]:
    """`cells` with their joules per token, and `comparisons` with the ratio of a spec cell's to its baseline's."""
    of = grouped(known, lambda metered: metered.block.cell)
    wrong = {c.cell for c in comparisons if c.tokens.defects}

    def extended(result: CellResult) -> CellResult:
        mine = of[result.cell]
        if result.status == "failed" or not mine:
            return result
        value = Value(PER_TOKEN, sum(m.joules for m in mine) / sum(m.tokens for m in mine), "ratio_of_sums", len(mine))
        if result.cell in wrong:
            value = replace(value, value=None, reason_code="token_mismatch")
        return replace(result, values={**result.values, PER_TOKEN: value})

    def beside(comparison: Comparison) -> Iterator[Value]:
        cell = comparison.cell
        joules = {id(m.block): m.per_token for m in (*of[cell], *of[cell.baseline])}
        pairs = list(pairs_of([m.block for m in (*of[cell.baseline], *of[cell])], cell))
        if pairs:
            ratios = [math.log(joules[id(spec)] / joules[id(base)]) for base, spec in pairs]
            between_of = between_runs.get(cell.key, ASSUMED)
            yield speedup(paired(plan, pairs, ratios), comparison.tokens, between_of, RATIO)

    return tuple(map(extended, cells)), tuple(replace(c, beside=(*c.beside, *beside(c))) for c in comparisons)

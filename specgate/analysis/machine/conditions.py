"""Samples of the machine → what it did while each point was measured. Pure: the same journal gives the same answer.

A block belongs to the monitor process that ran beside its engine process. The time span of a point reaches from the
monitor's last sample before the first measured block to its first sample after the last one. Counters that only grow
(violations, memory errors) are therefore compared across all of the point's blocks.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from specgate.analysis.grouping import grouped
from specgate.analysis.machine.clock_comparison import compared_clocks
from specgate.analysis.machine.cpu_pace import pace_of
from specgate.analysis.machine.timeline import timeline_of
from specgate.contract import Block, Plan
from specgate.contract.conditions import (
    POWER_CAPS,
    Conditions,
    GpuConditions,
    GpuReading,
    HostJudgement,
    Sample,
    clock_readings,
)

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The part of a point that one monitor process observed.

    `spans`: (begin, end) of its blocks, in nanoseconds on the monotonic clock.
    `samples`: the samples around and between these blocks.
    `before_us`: numbers of unrecognised processes that used the GPU before our engine did.
    """

    spans: tuple[tuple[int, int], ...]
    samples: tuple[Sample, ...]
    before_us: frozenset[int]

    @property
    def gaps_s(self) -> Iterator[float]:
        """Seconds between neighbouring samples, from the start of the first block to the end of the last."""
        start, end = self.spans[0][0], self.spans[-1][1]
        inside = (s.monotonic_ns for s in self.samples if start < s.monotonic_ns < end)
        return ((b - a) / 1e9 for a, b in pairwise((start, *inside, end)))

    @property
    def bracketed(self) -> bool:
        """True if there is a sample before the first block and one after the last."""
        return bool(self.samples) and (
            self.samples[0].monotonic_ns <= self.spans[0][0] and self.spans[-1][1] <= self.samples[-1].monotonic_ns
        )


def conditions_of(
    plan: Plan, blocks: Sequence[Block], samples: Sequence[Sample], hosts: Mapping[str, HostJudgement] | None = None
) -> dict[str, Conditions]:
    """Point key → conditions, for every point that has a measured block. `hosts`: what was judged block by block."""
    watches = grouped(sorted(samples, key=lambda s: s.monotonic_ns), lambda s: s.worker_generation)
    of = grouped((block for block in blocks if not block.warmup), lambda block: block.point)
    by_point = {}
    for point in plan.points:
        if mine := of[point]:
            measured = (r for r in plan.rounds_of(point) if not r.warmup)
            turns = {(r.prompt_set, r.index): turn for turn, r in enumerate(measured)}
            scenario = plan.scenarios[point.scenario]
            apart = scenario.whole_requests or any(b.served or b.own_prefill for b in mine)
            point_conditions = _conditions(mine, watches, turns, apart=apart)
            by_point[point.key] = replace(point_conditions, host=(hosts or {}).get(point.key))
    return by_point


def _conditions(
    blocks: Sequence[Block],
    watches: Mapping[int, Sequence[Sample]],
    turns: Mapping[tuple[int, int], int],
    *,
    apart: bool,
) -> Conditions:
    """`apart`: the blocks hold prefills of their own, whose clocks are told apart from those of decoding."""
    by_watch: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        generation = watched_by(block, watches)
        if generation is not None and block.span_ns is not None:
            by_watch[generation].append(block)
    time_spans = {s: _time_span(of, watches[s]) for s, of in by_watch.items()}
    whole = {s: span for s, span in time_spans.items() if span.bracketed}
    inside = [s for span in whole.values() for s in span.samples]
    shares = [s.host.other_cpu_share for s in inside if s.host.other_cpu_share is not None]
    pace = pace_of(inside)
    return Conditions(
        blocks=len(blocks),
        watched=sum(len(by_watch[s]) for s in whole),
        samples=len(inside),
        longest_gap_s=max((gap for span in whole.values() for gap in span.gaps_s), default=0.0),
        clock_jump_s=max((_jump(a, b) for s in whole.values() for a, b in pairwise(s.samples)), default=0.0),
        other_cpu_share=statistics.fmean(shares) if shares else None,
        gpu=_gpu(list(whole.values()), [b for s in whole for b in by_watch[s]], apart=apart),
        timeline=timeline_of(((by_watch[s], whole[s].samples) for s in sorted(whole)), turns, pace),
        cpu_pace=pace,
    )


def watched_by(block: Block, watches: Iterable[int]) -> int | None:
    """The generation, among `watches`, of the monitor process that ran beside the block's engine; None: none did."""
    return max((generation for generation in watches if generation <= block.worker_generation), default=None)


def _time_span(blocks: Sequence[Block], watch: Sequence[Sample]) -> TimeSpan:
    spans = sorted(b.span_ns for b in blocks if b.span_ns is not None)
    times = [s.monotonic_ns for s in watch]
    first = max(0, bisect_right(times, spans[0][0]) - 1)
    last = bisect_left(times, spans[-1][1]) + 1
    first_processes = watch[0].gpu.processes if watch[0].gpu else None
    return TimeSpan(
        tuple(spans), tuple(watch[first:last]), frozenset(p.pid for p in first_processes or () if p.owner == "unseen")
    )


def _jump(a: Sample, b: Sample) -> float:
    return abs((b.wall_ns - a.wall_ns) - (b.monotonic_ns - a.monotonic_ns)) / 1e9


# ── the GPU ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gpu(time_spans: Sequence[TimeSpan], blocks: Sequence[Block], *, apart: bool) -> GpuConditions:
    samples = [s for span in time_spans for s in span.samples]
    readings = [s.gpu for s in samples if s.gpu is not None and not s.gpu.silent]
    reasons = 0
    for span in time_spans:
        begin = span.samples[0].monotonic_ns if span.samples else 0
        for at, _, bits, _ in (reading for s in span.samples for reading in clock_readings(s)):
            reasons |= (bits or 0) if at >= begin else 0
    temperatures = _known(g.temperature_c for g in readings)
    parts = {"decoding": _decoding, "prefill": _prefilling} if apart else {"decoding": _whole}
    if any(b.began_ns is None for b in blocks):  # known of some alone, their parts would not be like the others'
        blocks = [replace(b, began_ns=None) for b in blocks]
    return GpuConditions(
        uuid=readings[0].uuid if readings else None,
        missing=len(samples) - len(readings),
        why_missing=next((why for s in samples if (why := _why_missing(s))), None),
        unread={name: why for gpu in readings for name, why in gpu.unread.items()},
        zeros=tuple(dict.fromkeys(name for gpu in readings for name in gpu.zeros)),
        seen_at_work=any(map(_at_work, readings)),
        foreign=tuple(dict.fromkeys(who for span in time_spans for who in _foreign(span))),
        clock_event_reasons=reasons,
        thermal_violation_ns=_growth(time_spans, "thermal_violation_ns"),
        power_violation_ns=_growth(time_spans, "power_violation_ns"),
        power_limit_mw=min(_known(g.power_limit_mw for g in readings), default=None),
        default_power_limit_mw=max(_known(g.default_power_limit_mw for g in readings), default=None),
        ecc_uncorrected=max(_known(g.ecc_uncorrected for g in readings), default=None),
        rows_in_trouble=any(g.rows_in_trouble for g in readings),
        sm_clock_mhz=_clocks(samples, blocks, _decoding if apart else _whole),
        prefill_clock_mhz=_clocks(samples, blocks, _prefilling) if apart else {},
        common_clocks=compared_clocks(samples, blocks, parts),
        temperature_c=(min(temperatures), max(temperatures)) if temperatures else None,
        **_at_cap(samples, blocks),
    )


def _at_cap(samples: Sequence[Sample], blocks: Sequence[Block]) -> dict[str, Any]:
    """Power and clocks within the blocks, by the samples; empty for runs whose samples lack the highest clock."""
    inside = [g for b in blocks for g in _within(b, samples)]
    with_highest = [g for g in inside if g.max_sm_clock_mhz is not None or "max_sm_clock_mhz" in g.unread]
    if not with_highest:
        return {}
    power = _known(g.power_mw for g in with_highest)
    reasons = _known(g.clock_event_reasons for g in with_highest)
    return {
        "max_sm_clock_mhz": max(_known(g.max_sm_clock_mhz for g in with_highest), default=None),
        "power_w": statistics.fmean(power) / 1000 if power else None,
        "capped": statistics.fmean(bool(bits & POWER_CAPS) for bits in reasons) if reasons else None,
    }


def _within(block: Block, samples: Sequence[Sample]) -> Iterator[GpuReading]:
    """The GPU readings that were taken during a block."""
    start, end = _whole(block)
    return (s.gpu for s in samples if s.gpu is not None and start <= s.monotonic_ns <= end)


def _whole(block: Block) -> tuple[int, int]:
    """Times at which the harness asked for a block and had its result."""
    assert block.span_ns is not None
    return block.span_ns


def _prefilling(block: Block) -> tuple[int, int]:
    """Time span in which a block that holds its own prefill was surely in it.

    Asking, prefill, decoding and answering follow each other. Where the engine does not say when its times begin, how
    long asking and answering took is known as a sum alone.
    """
    if block.began_ns is not None:
        sent_ns = min((r.sent_ns for r in block.served.requests), default=0) if block.served else 0
        return block.began_ns + sent_ns, block.began_ns + block.prefill_ns
    begin, end = _whole(block)
    beside = max(0, end - begin - block.prefill_ns - block.elapsed_ns)
    return begin + beside, begin + block.prefill_ns


def _decoding(block: Block) -> tuple[int, int]:
    """Time span in which a block that holds its own prefill was surely decoding."""
    if block.began_ns is not None:
        return block.began_ns + block.prefill_ns, block.began_ns + block.prefill_ns + block.elapsed_ns
    begin, end = _whole(block)
    return end - block.elapsed_ns, begin + block.prefill_ns + block.elapsed_ns


def _why_missing(sample: Sample) -> str | None:
    if sample.gpu is None:
        return sample.nvml
    return next(iter(sample.gpu.unread.values()), None) if sample.gpu.silent else None


def _at_work(gpu: GpuReading) -> bool:
    """Positive control: a driver that never shows our own work cannot be trusted to show that of others."""
    return bool(gpu.utilization_pct) or any(p.owner == "ours" for p in gpu.processes or ())


def _foreign(span: TimeSpan) -> Iterator[str]:
    """Processes on the GPU that are not ours.

    With another PID namespace our own process is not recognised. One process number that was not there before the
    engine then counts as ours, and every further one as foreign.
    """
    listed = [s.gpu.processes for s in span.samples if s.gpu is not None and s.gpu.processes]
    recognised = any(p.owner == "ours" for processes in listed for p in processes)
    for processes in listed:
        yield from (f"pid {p.pid} ({p.name or 'unnamed'})" for p in processes if p.owner == "foreign")
        unseen = [p.pid for p in processes if p.owner == "unseen"]
        late = [pid for pid in unseen if pid not in span.before_us]
        yield from (f"pid {pid} (of another namespace)" for pid in unseen if pid in span.before_us)
        yield from (f"pid {pid} (of another namespace)" for pid in late[0 if recognised else 1 :])


def _growth(time_spans: Sequence[TimeSpan], name: str) -> int | None:
    """By how much a counter grew, summed over all time spans; None where it could not be read. After a reset it counts
    from 0.
    """
    total, known = 0, False
    for span in time_spans:
        values = _known(getattr(s.gpu, name) for s in span.samples if s.gpu is not None)
        known = known or len(values) > 1
        total += sum(b - a if b >= a else b for a, b in pairwise(values))
    return total if known else None


def _clocks(
    samples: Sequence[Sample], blocks: Sequence[Block], span_of: Callable[[Block], tuple[int, int]]
) -> dict[str, float]:
    """Role name → mean SM clock (MHz) of the readings that lie within that part of its blocks."""
    readings = [reading for s in samples for reading in clock_readings(s)]
    of: dict[str, list[int]] = defaultdict(list)
    for block in blocks:
        start, end = span_of(block)
        of[block.role.name] += _known(r.sm_mhz for r in readings if start <= r.monotonic_ns <= end)
    return {role: statistics.fmean(values) for role, values in of.items() if values}


def _known(values: Iterable[N | None]) -> list[N]:
    return [v for v in values if v is not None]

"""Blocks and the samples around them → what the machine did over the time of a point, small enough for run.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from specgate.analysis.machine.cpu_pace import is_slow, reading
from specgate.contract import Block
from specgate.contract.conditions import CpuPace, Sample, Timeline

ENTRIES: Final = 60
"""The largest number of entries in each column."""

N = TypeVar("N", int, float)
Monitored = tuple[Sequence[Block], Sequence[Sample]]
"""The blocks of a point that one monitor process observed, and its samples around and between them, in order of
time.
"""


def timeline_of(monitored: Iterable[Monitored], turns: Mapping[tuple[int, int], int], pace: CpuPace | None) -> Timeline:
    """The timeline of one point. The times of several monitor processes are put end to end.

    `turns`: (prompt set, round) → round of the whole point in running order. `pace`: of the CPUs over the whole point.
    """
    rounds: dict[int, list[float]] = {}
    samples: list[tuple[float, Sample]] = []
    shift = 0.0
    for blocks, watch in monitored:
        origin = min(span[0] for span in spans(blocks))
        for block in blocks:
            if block.span_ns is not None:
                times = (shift + (ns - origin) / 1e9 for ns in block.span_ns)
                rounds.setdefault(turns[block.prompt_set, block.round], []).extend(times)
        samples += [(shift + (s.monotonic_ns - origin) / 1e9, s) for s in watch]
        shift += (max(span[1] for span in spans(blocks)) - origin) / 1e9
    chunks = list(chunked(samples))
    return Timeline(
        rounds=tuple((turn, round(min(ns), 3), round(max(ns), 3)) for turn, ns in sorted(rounds.items())),
        at_s=tuple(round(chunk[0][0], 3) for chunk in chunks),
        sm_clock_mhz=column(chunks, min, lambda s: s.gpu.sm_clock_mhz if s.gpu else None),
        temperature_c=column(chunks, max, lambda s: s.gpu.temperature_c if s.gpu else None),
        power_w=column(chunks, max, watts),
        other_cpu_share=column(chunks, max, lambda s: s.host.other_cpu_share),
        slow_cpu_share=column(chunks, statistics.fmean, lambda s: slow(s, pace)) if pace else (),
    )


def spans(blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """(begin, end) of the blocks, in nanoseconds on the monotonic clock."""
    return (b.span_ns for b in blocks if b.span_ns is not None)


def watts(sample: Sample) -> float | None:
    """The GPU's power in W; None where it was not read."""
    power = sample.gpu.power_mw if sample.gpu else None
    return None if power is None else power / 1000


def slow(sample: Sample, pace: CpuPace) -> float | None:
    """1 where the watch's work took long for a point of this pace, else 0; None where the sample does not tell."""
    ns = reading(sample)
    return None if ns is None else float(is_slow(ns, pace.fastest_ns))


def chunked(samples: Sequence[tuple[float, Sample]]) -> Iterator[Sequence[tuple[float, Sample]]]:
    """`samples` in at most ENTRIES chunks of equal size."""
    size = math.ceil(len(samples) / ENTRIES)
    return (samples[i : i + size] for i in range(0, len(samples), size or 1))


def column(
    chunks: Sequence[Sequence[tuple[float, Sample]]],
    made_of: Callable[[Iterable[N]], N],
    read: Callable[[Sample], N | None],
) -> tuple[N | None, ...]:
    """One entry per chunk: `made_of` of the values that `read` finds in its samples; None where it finds none."""
    known = ([value for _, sample in chunk if (value := read(sample)) is not None] for chunk in chunks)
    return tuple(made_of(values) if values else None for values in known)

"""Blocks and the samples around them → what the machine did over the time of a point, small enough for run.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from specgate.contract import Block
from specgate.contract.conditions import Sample, Timeline

ENTRIES: Final = 60
"""The largest number of entries in each column."""

N = TypeVar("N", int, float)
Monitored = tuple[Sequence[Block], Sequence[Sample]]
"""The blocks of a point that one monitor process observed, and its samples around and between them, in order of
time.
"""


def timeline_of(monitored: Iterable[Monitored], turns: Mapping[tuple[int, int], int]) -> Timeline:
    """The timeline of one point. The times of several monitor processes are put end to end.

    `turns`: (prompt set, round) → round of the whole point in running order.
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
    )


def spans(blocks: Sequence[Block]) -> Iterator[tuple[int, int]]:
    """(begin, end) of the blocks, in nanoseconds on the monotonic clock."""
    return (b.span_ns for b in blocks if b.span_ns is not None)


def watts(sample: Sample) -> float | None:
    """The GPU's power in W; None where it was not read."""
    power = sample.gpu.power_mw if sample.gpu else None
    return None if power is None else power / 1000


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

"""Blocks and the samples around them → a point in time, small enough for run.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from specgate.core import Block
from specgate.core.conditions import Sample, Timeline

ENTRIES: Final = 60
"""Of each column, at most."""

N = TypeVar("N", int, float)
Watch = tuple[Sequence[Block], Sequence[Sample]]
"""The blocks of a point that one watch saw, and its samples around and among them, in order of time."""


def timeline_of(watches: Iterable[Watch], turns: Mapping[tuple[int, int], int]) -> Timeline:
    """`turns`: (prompt set, round) → round of the whole point in running order."""
    rounds: dict[int, list[float]] = {}
    samples: list[tuple[float, Sample]] = []
    shift = 0.0
    for blocks, seen in watches:
        origin = min(span[0] for span in spans(blocks))
        for block in blocks:
            if block.span_ns is not None:
                times = (shift + (ns - origin) / 1e9 for ns in block.span_ns)
                rounds.setdefault(turns[block.prompt_set, block.round], []).extend(times)
        samples += [(shift + (s.monotonic_ns - origin) / 1e9, s) for s in seen]
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
    return (b.span_ns for b in blocks if b.span_ns is not None)


def watts(sample: Sample) -> float | None:
    power = sample.gpu.power_mw if sample.gpu else None
    return None if power is None else power / 1000


def chunked(samples: Sequence[tuple[float, Sample]]) -> Iterator[Sequence[tuple[float, Sample]]]:
    size = math.ceil(len(samples) / ENTRIES)
    return (samples[i : i + size] for i in range(0, len(samples), size or 1))


def column(
    chunks: Sequence[Sequence[tuple[float, Sample]]],
    worst: Callable[[Iterable[N]], N],
    read: Callable[[Sample], N | None],
) -> tuple[N | None, ...]:
    known = ([value for _, sample in chunk if (value := read(sample)) is not None] for chunk in chunks)
    return tuple(worst(values) if values else None for values in known)

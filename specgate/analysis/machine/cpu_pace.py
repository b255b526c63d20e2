"""Evenness of the CPUs' speed, by the CPU time of a fixed piece of work that the watch does with every sample.

Nothing is judged by it. It names a cause that counters of CPU time do not show. The watch is on one CPU at a time, so
it tells of the host and not of the CPU that an engine's thread is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.contract.conditions import CpuPace, Sample

LEAST_READINGS: Final = 20
"""Of fewer nothing is said."""
SLOW: Final = 1.25
"""A reading that takes this many times as long as the fastest tenth is slow. On hosts whose guests share cores, work
took 1.5 to 2 times as long at times (docs/machine.md); on two CPUs that an engine kept busy, at most 1.23 times.
"""
TOLD: Final = 0.05
"""A share of slow readings above this is told."""


def pace_of(samples: Sequence[Sample]) -> CpuPace | None:
    """The pace over these samples; None where fewer than `LEAST_READINGS` tell one.

    samples: of one host, as a resumed run's are too; a reading of no time, as in a file that was edited, tells nothing.
    CPUs that are slow in more than nine of ten look evenly fast.
    """
    taken = sorted(ns for s in samples if (ns := reading(s)) is not None)
    if len(taken) < LEAST_READINGS:
        return None
    fastest = taken[len(taken) // 10]
    slowest = taken[len(taken) - 1 - len(taken) // 20]
    slow = sum(is_slow(ns, fastest) for ns in taken)
    return CpuPace(len(taken), fastest, slow, slowest / fastest)


def reading(sample: Sample) -> int | None:
    """The CPU time of the work in nanoseconds; None where the sample tells nothing."""
    ns = sample.host.work_ns
    return ns if ns is not None and ns > 0 else None


def is_slow(ns: int, fastest_ns: int) -> bool:
    """True if a reading took much longer than the fastest tenth, which took `fastest_ns` or less."""
    return ns >= SLOW * fastest_ns


def uneven(pace: CpuPace | None) -> str | None:
    """Sentence that the CPUs were not evenly fast; None if they were, or nothing tells."""
    if pace is None or pace.slow_share <= TOLD:
        return None
    return (
        f"the CPUs were not evenly fast: in {pace.slow} of {pace.readings} samples the same work took {SLOW} times as "
        f"long as in the fastest tenth, or longer ({pace.slowest:.2f} times in the slowest twentieth): a core that "
        "another thread shares, cores of two kinds, or a lower clock; counters of CPU time do not show it"
    )

"""Speed of a CPU: the CPU time that a fixed piece of work takes.

Counters of CPU time do not tell that a core is shared with another thread, such as one of another guest of the same
host, that it is of a slower kind, or that its clock is low. The thread runs all the while; it only gets less done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

LOOP: Final = 2_000
"""Turns of an empty loop: some 20 µs."""
PARTS: Final = 8
"""So many times in a row. The shortest counts, so that neither waking up nor an interrupt does."""
FINE_S: Final = 1e-6
"""A clock of CPU time that is coarser than this, in seconds, tells nothing here."""
MOST_CPUS: Final = 32
"""So many CPUs are tried one by one, spread evenly over those that there are."""


def work_ns() -> int | None:
    """Nanoseconds of CPU time that the calling thread needs for the work; None where the clock is too coarse, by its
    own word or because it stood still.

    CPU time, and not time: waiting for a CPU is counted elsewhere (`cpu_counters`).
    """
    if time.get_clock_info("thread_time").resolution > FINE_S:
        return None
    taken = []
    for _ in range(PARTS):
        began = time.thread_time_ns()
        for _ in range(LOOP):
            pass
        taken.append(time.thread_time_ns() - began)
    return min(taken) if min(taken) > 0 else None


def by_cpu(usable: Collection[int]) -> dict[int, int]:
    """CPU → `work_ns` on it, for at most `MOST_CPUS` of the `usable` ones.

    Empty where a thread cannot choose its CPU or may not, or the clock is too coarse. The calling thread may use the
    same CPUs afterwards as before.
    """
    if not hasattr(os, "sched_setaffinity") or work_ns() is None:
        return {}
    before, cpus, many = os.sched_getaffinity(0), sorted(usable), min(len(usable), MOST_CPUS)
    times = {}
    try:
        for cpu in (cpus[i * len(cpus) // many] for i in range(many)):
            os.sched_setaffinity(0, {cpu})
            if (taken := work_ns()) is not None:
                times[cpu] = taken
    except OSError:  # a CPU that was switched off meanwhile, or a sandbox that forbids to choose one
        return {}
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)
    return times

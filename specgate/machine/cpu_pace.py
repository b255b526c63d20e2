"""Speed of a CPU: the CPU time that a fixed piece of work takes.

Counters of CPU time do not tell that a core is shared with another thread, such as one of another guest of the same
host, that it is of a slower kind, or that its clock is low. The thread runs all the while; it only gets less done.
"""

from __future__ import annotations

import time
from typing import Final

LOOP: Final = 2_000
"""Turns of an empty loop: some 20 µs."""
PARTS: Final = 8
"""So many times in a row. The shortest counts, so that neither waking up nor an interrupt does."""
FINE_S: Final = 1e-6
"""A clock of CPU time that is coarser than this, in seconds, tells nothing here."""


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

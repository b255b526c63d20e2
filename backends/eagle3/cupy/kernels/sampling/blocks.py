"""Division of the columns of a row among threads and blocks. What a kernel leaves does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WARP: Final = 32
MOST_THREADS: Final = 256
EACH: Final = 8
"""Columns of a thread, in kernels that give a row several blocks."""


@dataclass(frozen=True, slots=True)
class Division:
    """`blocks` blocks of `threads` threads, each thread with EACH columns, for a row of `columns` columns."""

    columns: int

    @property
    def threads(self) -> int:
        return threads_of(-(-self.columns // EACH), MOST_THREADS)

    @property
    def blocks(self) -> int:
        return -(-self.columns // (self.threads * EACH))

    @property
    def constants(self) -> dict[str, int]:
        return {"vocab": self.columns, "threads": self.threads, "columns": EACH}


def threads_of(work: int, most: int) -> int:
    """Whole warps for `work` things to do, at most `most` threads."""
    return min(most, -(-work // WARP) * WARP)

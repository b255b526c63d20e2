"""Launchers of the kernels that draw tokens at a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from specgate.backends.eagle3.cupy.kernels.loader import Kernel

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


class Divided(Kernel):
    """A kernel that gives a row of `vocab` columns several blocks."""

    vocab: int

    @property
    def constants(self) -> dict[str, int | float]:
        return {**super().constants, **Division(self.vocab).constants}


class BiasRows(Divided):
    """Adds `bias` to every row of `logits` and makes `choices` anew.

    `best` and `finished` are zero before and after.
    """


BUCKETS: Final = 2048
"""Buckets of a row, as `masses.cuh` has them."""
EDGE: Final = 3
"""Numbers of an edge: its bucket, the mass before it, the mass of the row."""


class WeighRows(Divided):
    """Leaves in `edges` in which bucket of each row of `logits` top-k ends or, without it, top-p.

    `sums` and `finished` are zero before and after. `choices`: the greedy ones, which stay.
    """

    temperature: float
    top_k: int
    top_p: float

    @property
    def constants(self) -> dict[str, int | float]:
        """`top_k`: one of all columns or more is none, which is 0."""
        return {**super().constants, "top_k": self.top_k if self.top_k < self.vocab else 0}


LISTED: Final = 1 << 14
"""Columns of a row that a list has room for: 128 KiB, a quarter of a large vocabulary's logits. Of a model's row
a bucket has some hundreds, and top-k keeps few. A row that needs more is read again and again.
"""


class CutRows(WeighRows):
    """Leaves in `cuts` the rank of the last column of each row that the filters keep, as `rank.cuh` has it.

    With top-k or top-p, `edges` are as `WeighRows` leaves them, `listed` is a workspace, and `list_sizes` and
    `finished` are zero before and after. `choices`: the greedy ones, which stay.
    """

    min_p: float
    listed: int = LISTED

    @property
    def constants(self) -> dict[str, int | float]:
        constants = super().constants
        return constants if constants["top_k"] or self.top_p < 1 else {**constants, "threads": WARP}


MOST_COLUMNS: Final = 1 << 18
"""Of a row: a runner of the race has so many bits for its column."""


class Purpose(IntEnum):
    """Purpose of a race's random numbers, as `race.cuh` has it."""

    TARGET = 0
    DRAFT = 1


@dataclass(frozen=True, slots=True)
class Seed:
    """The words of a seed as C ints."""

    seed_low: int
    seed_high: int

    @classmethod
    def of(cls, seed: int) -> Seed:
        return cls(*((word & 0xFFFFFFFF ^ 1 << 31) - (1 << 31) for word in (seed, seed >> 32)))


class DrawRows(Divided):
    """Puts a drawn column of each row of `logits` in the place of its greedy choice.

    `filtered`: what may be drawn is what `cuts` leaves. `mapped`: column c stands for the target's token
    `target_ids[c]`, and has that token's random numbers, which are those of `purpose`. `tree_rows`: so many nodes may a
    slot's tree have, of which rows are the first; None: rows are a chain.

    Row t of a slot is drawn for position `length` + 1 + `offset` + t, a node for that at its depth, which `masks` say.
    `requests`: who the slots' requests are. `best` and `finished` are zero before and after.
    """

    temperature: float
    filtered: bool = False
    mapped: bool = False
    purpose: Purpose = Purpose.TARGET
    tree_rows: int | None = None

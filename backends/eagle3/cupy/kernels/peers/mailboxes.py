"""Memory that a GPU's peers write to, and counts of exchanges (`peer_words.cuh`).

N GPUs share a target; each is a rank, 0 … N − 1. R is the most rows of a step, H the hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

MOST_RANKS: Final = 4
COLUMNS: Final = 64
"""Columns of the stream that a block of `all_reduce` has."""
LIMIT_MS: Final = 4000
"""How long a kernel waits for another GPU before it gives up. Those that wait for the one that gave up do so as long
once more at most, so that a run ends within ten seconds.
"""


@dataclass(frozen=True, slots=True)
class Mailboxes:
    """Of rank `rank`: the mailboxes of all ranks, its own among them, in the memory of the rank that reads them.

    `sums` int64 [2, N, R, H] each: for partial sums; `choices` int64 [2, N, R, 4] each: for greedy choices. `sum_count`
    int32 [H / 64] and `choice_count` int32 [1] say how many exchanges there were. `partial` float32 [R, H]: what this
    rank's products leave to be summed. `fault` is that of its slots.
    """

    rank: int
    sums: tuple[Tensor, ...]
    choices: tuple[Tensor, ...]
    sum_count: Tensor
    choice_count: Tensor
    partial: Tensor
    fault: Tensor

    @property
    def ranks(self) -> int:
        return len(self.sums)

    @property
    def counts(self) -> tuple[Tensor, Tensor]:
        return self.sum_count, self.choice_count

    def check(self, rows: Rows, most: int, ranks: int) -> None:
        """Raise ValueError for more rows, or another number of ranks, than a launcher was made for."""
        if rows.most > most or self.ranks != ranks:
            raise ValueError(f"{rows.most} rows of {self.ranks} ranks: made for {most} of {ranks}")

    def arguments(self, of: tuple[Tensor, ...]) -> dict[str, ARGUMENT]:
        """The fields `mailbox_0` … of a kernel; null beyond the last rank."""
        return {f"mailbox_{i}": of[i] if i < len(of) else None for i in range(MOST_RANKS)}


def sums_shape(ranks: int, rows: int, hidden: int) -> tuple[int, ...]:
    return 2, ranks, rows, hidden


def choices_shape(ranks: int, rows: int) -> tuple[int, ...]:
    return 2, ranks, rows, 4

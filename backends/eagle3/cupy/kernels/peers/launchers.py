"""Launchers of the kernels between GPUs, and the mailboxes that these write into.

N GPUs share a target; each is a rank, 0 … N − 1. R is the most rows of a step, H the hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

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


MOST_WARPS: Final = 8
"""Rows that a block works on at a time."""


class AllReduce(Kernel):
    """stream float32 [R, H] += the sum of all ranks' `partial`, and the `PreNormRows` of the norm that comes next.

    Every rank launches it; each waits for all others.
    """

    def __init__(self, hidden: int, rows: int, ranks: int, max_rows: int) -> None:
        """`rows`: the most that this launcher will see; `max_rows`: the most of any, which mailboxes have room for."""
        self.hidden, self.rows, self.ranks, self.max_rows = hidden, rows, ranks, max_rows
        self.threads = 32 * min(rows, MOST_WARPS)
        super().__init__(
            "all_reduce", hidden=hidden, ranks=ranks, max_rows=max_rows, threads=self.threads, limit_ms=LIMIT_MS
        )

    def __call__(
        self, stream: Tensor, pre_norm: PreNormRows, norm_weight: Tensor, mailboxes: Mailboxes, rows: Rows
    ) -> None:
        """`norm_weight` bfloat16 [H]. Raises ValueError for operands that this launcher was not made for."""
        mailboxes.check(rows, self.rows, self.ranks)
        inboxes = mailboxes.arguments(mailboxes.sums)
        operands = {"stream": stream, "norm_weight": norm_weight, "exchanges": mailboxes.sum_count}
        self.launch((self.hidden // COLUMNS,), pre_norm, mailboxes, rows, **operands, **inboxes)


class CombineChoices(Kernel):
    """The best of all ranks' choices (int64 [R], packed as in `argmax.cuh`), each from its own part of the vocabulary.

    What a rank leaves has token ids. Ranks that read other tokens, or at other positions, end the run.
    """

    def __init__(self, part: int, rows_per_slot: int, rows: int, slot_rows: int, ranks: int, max_rows: int) -> None:
        """`part`: columns of a rank's LM head; `rows`: the most of this launcher; `slot_rows`: of a slot, in an
        engine's widest step; `max_rows`: the most rows that mailboxes have room for.
        """
        self.rows, self.slot_rows, self.ranks = rows, slot_rows, ranks
        self.threads = -(-rows // 32) * 32
        super().__init__(
            "combine_choices",
            part=part,
            rows=rows_per_slot,
            slot_rows=slot_rows,
            ranks=ranks,
            max_rows=max_rows,
            threads=self.threads,
            limit_ms=LIMIT_MS,
        )

    def __call__(self, choices: Tensor, mailboxes: Mailboxes, slots: Slots, rows: Rows) -> None:
        mailboxes.check(rows, self.rows, self.ranks)
        inboxes = mailboxes.arguments(mailboxes.choices)
        self.launch((1,), mailboxes, slots, rows, choices=choices, exchanges=mailboxes.choice_count, **inboxes)

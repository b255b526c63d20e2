"""Launchers of the kernels between GPUs, and the mailboxes that these write into.

N GPUs share a target; each is a rank, 0 … N − 1. R is the most rows of a step, H the hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel

COLUMNS: Final = 64
"""Columns of the stream that a block of `all_reduce` has."""
LIMIT_MS: Final = 4000
"""How long a kernel waits for another GPU before it gives up. Those that wait for the one that gave up do so as long
once more at most, so that a run ends within ten seconds.
"""


class Exchanges(NamedTuple):
    """How many exchanges there were, int32, which each block counts for itself; and the mailboxes of all ranks, int64,
    in the memory of the rank that reads them.
    """

    exchanges: Tensor
    mailbox_0: Tensor
    mailbox_1: Tensor
    mailbox_2: Tensor | None = None
    mailbox_3: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Mailboxes:
    """What rank `rank` exchanges with all ranks.

    `sums` have mailboxes [2, N, R, H] for partial sums, and are counted by H / 64 blocks; `choices` have mailboxes
    [2, N, R, 4] for greedy choices, and are counted by one. `partial` float32 [R, H]: what this rank's products leave
    to be summed. `fault` is that of its slots.
    """

    rank: int
    sums: Exchanges
    choices: Exchanges
    partial: Tensor
    fault: Tensor


def sums_shape(ranks: int, rows: int, hidden: int) -> tuple[int, ...]:
    return 2, ranks, rows, hidden


def choices_shape(ranks: int, rows: int) -> tuple[int, ...]:
    return 2, ranks, rows, 4


MOST_WARPS: Final = 8
"""Rows that a block works on at a time."""


class AllReduce(Kernel):
    """stream float32 [R, H] += the sum of all ranks' `partial`, and the `PreNormRows` of the norm that comes next.

    Every rank launches it; each waits for all others. `most`: rows that this launcher will see at most; `max_rows`:
    the most of any, which mailboxes have room for.
    """

    hidden: int
    most: int
    ranks: int
    max_rows: int
    limit_ms: int = LIMIT_MS

    @property
    def constants(self) -> dict[str, int | float]:
        own = super().constants
        return {"MOST": own.pop("most"), **own, "threads": 32 * min(self.most, MOST_WARPS)}


class CombineChoices(Kernel):
    """The best of all ranks' choices (int64 [R], packed as in `argmax.cuh`), each from its own part of the vocabulary.

    What a rank leaves has token ids. Ranks that read other tokens, or at other positions, end the run.

    `part`: columns of a rank's LM head; `rows`: of a slot; `most`: of this launcher; `slot_rows`: of a slot, in an
    engine's widest step; `max_rows`: the most rows that mailboxes have room for.
    """

    part: int
    rows: int
    most: int
    slot_rows: int
    ranks: int
    max_rows: int
    limit_ms: int = LIMIT_MS

    @property
    def constants(self) -> dict[str, int | float]:
        own = super().constants
        return {"MOST": own.pop("most"), **own, "threads": -(-self.most // 32) * 32}

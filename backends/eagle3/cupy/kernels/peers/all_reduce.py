"""Launches `all_reduce.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.peers.mailboxes import COLUMNS, LIMIT_MS, Mailboxes
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

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
        given = {"stream": stream, "norm_weight": norm_weight, "exchanges": mailboxes.sum_count}
        self.launch((self.hidden // COLUMNS,), pre_norm, mailboxes, rows, **given, **inboxes)

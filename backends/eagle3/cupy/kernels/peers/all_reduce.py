"""Launches `all_reduce.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
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

    @announced
    def __call__(
        self, stream: Tensor, pre_norm: PreNormRows, norm_weight: Tensor, mailboxes: Mailboxes, rows: Rows
    ) -> None:
        """`norm_weight` bfloat16 [H]. Raises ValueError for operands that this launcher was not made for."""
        if rows.most > self.rows or mailboxes.ranks != self.ranks:
            raise ValueError(f"{rows.most} rows of {mailboxes.ranks} ranks: made for {self.rows} of {self.ranks}")
        expect("stream", stream, (rows.most, self.hidden), torch.float32)
        expect("norm weight", norm_weight, (self.hidden,), torch.bfloat16)
        pre_norm.check(rows.most, self.hidden)
        mailboxes.check(self.max_rows, self.hidden)
        self.launch(
            "all_reduce",
            (self.hidden // COLUMNS,),
            (self.threads,),
            {
                "stream": stream,
                "normed": pre_norm.rows,
                "squares": pre_norm.squares,
                "exchanges": mailboxes.sum_count,
                **mailboxes.arguments(mailboxes.sums),
                "fault": mailboxes.fault,
                "active_count": rows.active_count,
                "partial": mailboxes.partial,
                "norm_weight": norm_weight,
                "rows_per_slot": rows.per_slot,
                "rank": mailboxes.rank,
            },
        )

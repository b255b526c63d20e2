"""Launches `accept.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class Accept(Kernel):
    """How many drafts of each slot the target agrees with: the longest prefix that equals its choices (int64 [R]).

    The choices are cleared again.
    """

    def __init__(self, rows_per_slot: int, max_rows: int) -> None:
        super().__init__("accept", rows=rows_per_slot, max_rows=max_rows)
        self.max_rows = max_rows

    @announced
    def __call__(self, choices: Tensor, slots: Slots, rows: Rows) -> None:
        expect("choices", choices, (rows.most,), torch.int64)
        slots.check(rows.slots, self.max_rows)
        self.launch(
            "accept",
            (1,),
            (rows.slots,),
            {
                "accepted": slots.accepted,
                "target_tokens": slots.target_tokens,
                "choices": choices,
                "fault": slots.fault,
                "drafts": slots.drafts,
                "active": rows.active,
                "active_count": rows.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
            },
        )

"""Launches `tree_accept.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows, Slots


class TreeAccept(Kernel):
    """Which path of each slot's tree the target agrees with: the longest whose tokens are its own choices (int64 [R]).

    The choices are cleared again. A mask that is not the tree's sets Fault.MASK_INTEGRITY.
    """

    def __init__(self, rows_per_slot: int, levels: int, max_rows: int) -> None:
        """`max_rows`, `levels`: of the largest tree of the engine, of which this one's rows are the first."""
        super().__init__(
            "tree_accept",
            rows=rows_per_slot,
            stride=max_rows,
            levels=levels,
            max_rows=max_rows,
            threads=-(-rows_per_slot // 32) * 32,
        )
        self.rows_per_slot, self.levels, self.max_rows = rows_per_slot, levels, max_rows

    @announced
    def __call__(self, path: Tensor, choices: Tensor, masks: Tensor, parents: Tensor, slots: Slots, rows: Rows) -> None:
        """`path` int32 [S, levels + 1]: the accepted nodes, root first. `masks` int64 and `parents` int32 [S, T]."""
        expect("path", path, (rows.slots, self.levels + 1), torch.int32)
        expect("choices", choices, (rows.most,), torch.int64)
        expect("masks", masks, (rows.slots, self.max_rows), torch.int64)
        expect("parents", parents, (rows.slots, self.max_rows), torch.int32)
        slots.check(rows.slots, self.max_rows)
        self.launch(
            "tree_accept",
            (rows.slots,),
            (-(-self.rows_per_slot // 32) * 32,),
            {
                "accepted": slots.accepted,
                "path": path,
                "target_tokens": slots.target_tokens,
                "choices": choices,
                "fault": slots.fault,
                "masks": masks,
                "parents": parents,
                "drafts": slots.drafts,
                "active": rows.active,
                "active_count": rows.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
            },
        )

"""Launches `tree_settle.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class TreeSettle(Kernel):
    """Which path of each slot's tree the target agrees with: the longest whose tokens are its own choices (int64 [R],
    cleared again). Moves what is kept for its nodes to where a chain has it: keys and values in all layers, captured
    features in the first rows. The draft's cache needs no move: its extension computes those rows anew.

    A mask that is not the tree's sets Fault.MASK_INTEGRITY.
    """

    def __init__(
        self, heads: Heads, layers: int, blocks: int, width: int, rows_per_slot: int, levels: int, max_rows: int
    ) -> None:
        """`blocks`: of the cache in all; `width`: of a row of features. `max_rows`, `levels`: of the largest tree of
        the engine, of which this one's rows are the first.
        """
        self.heads, self.layers, self.blocks, self.width = heads, layers, blocks, width
        self.rows_per_slot, self.levels, self.max_rows = rows_per_slot, levels, max_rows
        super().__init__(
            "tree_settle",
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            block=BLOCK,
            max_blocks=heads.max_blocks,
            layers=layers,
            blocks=blocks,
            width=width,
            rows=rows_per_slot,
            levels=levels,
            max_rows=max_rows,
            threads=heads.head_dim,
            shared_bytes=heads.head_dim * 16 * ((rows_per_slot + 14) // 8),
        )

    @announced
    def __call__(
        self,
        k_pages: Tensor,
        v_pages: Tensor,
        features: Tensor,
        path: Tensor,
        readers: Tensor,
        choices: Tensor,
        masks: Tensor,
        parents: Tensor,
        block_table: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        """`path` int32 [S, levels + 1]: becomes the accepted nodes, root first. `readers` int32 [S], zero. `masks`
        int64 and `parents` int32 [S, T].
        """
        h = self.heads
        expect("k_pages", k_pages, (self.layers, self.blocks, h.kv_heads, BLOCK, h.head_dim), torch.bfloat16)
        expect("v_pages", v_pages, (self.layers, self.blocks, h.kv_heads, h.head_dim, BLOCK), torch.bfloat16)
        expect("features", features, (rows.slots, self.max_rows, self.width), torch.bfloat16)
        expect("path", path, (rows.slots, self.levels + 1), torch.int32)
        expect("readers", readers, (rows.slots,), torch.int32)
        expect("choices", choices, (rows.most,), torch.int64)
        expect("masks", masks, (rows.slots, self.max_rows), torch.int64)
        expect("parents", parents, (rows.slots, self.max_rows), torch.int32)
        expect("block_table", block_table, (rows.slots, h.max_blocks), torch.int32)
        slots.check(rows.slots, self.max_rows)
        of_features = -(-self.width // (h.head_dim * 8))
        self.launch(
            "tree_settle",
            (self.layers * h.kv_heads + of_features, rows.slots),
            (h.head_dim,),
            {
                "k_pages": k_pages,
                "v_pages": v_pages,
                "features": features,
                "accepted": slots.accepted,
                "path": path,
                "target_tokens": slots.target_tokens,
                "choices": choices,
                "readers": readers,
                "fault": slots.fault,
                "masks": masks,
                "parents": parents,
                "drafts": slots.drafts,
                "length": slots.length,
                "block_table": block_table,
                "active": rows.active,
                "active_count": rows.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
            },
        )

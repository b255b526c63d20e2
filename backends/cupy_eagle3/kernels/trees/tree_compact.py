"""Launches `tree_compact.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, Heads
from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows, Slots


class TreeCompact(Kernel):
    """Moves what is kept for the accepted path's nodes to where a chain has it: keys and values in all layers, captured
    features in the first rows. The draft's cache needs no move: its extension computes those rows anew.
    """

    def __init__(self, heads: Heads, layers: int, blocks: int, width: int, levels: int, max_rows: int) -> None:
        """`blocks`: of the cache in all; `width`: of a row of features."""
        self.heads, self.layers, self.blocks, self.width = heads, layers, blocks, width
        self.levels, self.max_rows = levels, max_rows
        super().__init__(
            "tree_compact",
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            block=BLOCK,
            max_blocks=heads.max_blocks,
            layers=layers,
            blocks=blocks,
            width=width,
            levels=levels,
            max_rows=max_rows,
            threads=heads.head_dim,
        )

    @announced
    def __call__(
        self,
        k_pages: Tensor,
        v_pages: Tensor,
        features: Tensor,
        path: Tensor,
        block_table: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        """`path` int32 [S, levels + 1], as `TreeAccept` leaves it."""
        h = self.heads
        expect("k_pages", k_pages, (self.layers, self.blocks, h.kv_heads, BLOCK, h.head_dim), torch.bfloat16)
        expect("v_pages", v_pages, (self.layers, self.blocks, h.kv_heads, h.head_dim, BLOCK), torch.bfloat16)
        expect("features", features, (rows.slots, self.max_rows, self.width), torch.bfloat16)
        expect("path", path, (rows.slots, self.levels + 1), torch.int32)
        expect("block_table", block_table, (rows.slots, h.max_blocks), torch.int32)
        of_features = -(-self.width // (h.head_dim * 8))
        self.launch(
            "tree_compact",
            (self.layers * h.kv_heads + of_features, rows.slots),
            (h.head_dim,),
            {
                "k_pages": k_pages,
                "v_pages": v_pages,
                "features": features,
                "path": path,
                "accepted": slots.accepted,
                "length": slots.length,
                "block_table": block_table,
                "active": rows.active,
                "active_count": rows.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
            },
        )

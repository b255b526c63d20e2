"""Launches `block_bounds.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows


class BlockBounds(Kernel):
    """The largest and smallest keys of those blocks of each slot that have come to lie before the window.

    bounds: bfloat16 [layers, blocks, G, BLOCK / KEPT, 2, D], of keys [layers, blocks, G, BLOCK, D].
    """

    def __init__(self, heads: Heads, kept: KeptBlocks, blocks: int) -> None:
        """`blocks`: cache blocks in all."""
        self.heads, self.blocks = heads, blocks
        super().__init__(
            "block_bounds",
            **kept.middle,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            max_blocks=heads.max_blocks,
            blocks=blocks,
        )

    @announced
    def __call__(
        self,
        bounds: Tensor,
        k_pages: Tensor,
        block_table: Tensor,
        bounded: Tensor,
        length: Tensor,
        rows: Rows,
        *,
        most: int,
    ) -> None:
        """`bounded` [S]: how many blocks have bounds; up to `most` more get some, of positions [S] `length`."""
        h = self.heads
        layers = len(k_pages)
        expect("k_pages", k_pages, (layers, self.blocks, h.kv_heads, BLOCK, h.head_dim), torch.bfloat16)
        expect("bounds", bounds, (layers, self.blocks, h.kv_heads, BLOCK // KEPT, 2, h.head_dim), torch.bfloat16)
        self.launch(
            "block_bounds",
            (most, h.kv_heads, layers * rows.slots),
            (h.head_dim,),
            {
                "bounds": bounds,
                "k_pages": k_pages,
                "block_table": block_table,
                "bounded": bounded,
                "length": length,
                "active": rows.active,
                "active_count": rows.active_count,
                "slots": rows.slots,
            },
        )

"""Launches `block_scores.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

WARPS: Final = 4
BLOCKS_OF_WARP: Final = 8


class BlockScores(Kernel):
    """How well the newest queries may like each block of the middle: float32 [layers, slots, G, blocks].

    asked: bfloat16 [layers, S, T, N, D], of which the first `rows` rows of a slot ask.
    """

    def __init__(self, heads: Heads, kept: KeptBlocks, blocks: int, slots: int, rows: int, asked_rows: int) -> None:
        """`blocks`: cache blocks in all; `slots`: of the engine; `asked_rows`: T."""
        self.heads, self.blocks, self.slots, self.asked_rows = heads, blocks, slots, asked_rows
        self.stride = heads.max_blocks * (BLOCK // KEPT)
        super().__init__(
            "block_scores",
            **kept.middle,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            max_blocks=heads.max_blocks,
            blocks=blocks,
            slots=slots,
            query_rows=rows,
            asked_rows=asked_rows,
            stride=self.stride,
            warps=WARPS,
        )

    @announced
    def __call__(
        self, scores: Tensor, bounds: Tensor, asked: Tensor, block_table: Tensor, length: Tensor, rows: Rows
    ) -> None:
        h, layers = self.heads, len(bounds)
        expect("scores", scores, (layers * rows.slots, h.kv_heads, self.stride), torch.float32)
        expect("asked", asked, (layers, self.slots, self.asked_rows, h.heads, h.head_dim), torch.bfloat16)
        expect("bounds", bounds, (layers, self.blocks, h.kv_heads, BLOCK // KEPT, 2, h.head_dim), torch.bfloat16)
        self.launch(
            "block_scores",
            (-(-self.stride // (WARPS * BLOCKS_OF_WARP)), h.kv_heads, layers * rows.slots),
            (WARPS * 32,),
            {
                "scores": scores,
                "bounds": bounds,
                "asked": asked,
                "block_table": block_table,
                "length": length,
                "active": rows.active,
                "active_count": rows.active_count,
                "slots": rows.slots,
            },
        )

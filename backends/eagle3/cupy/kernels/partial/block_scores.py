"""Launches `block_scores.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

WARPS: Final = 4
BLOCKS_OF_WARP: Final = 8


class BlockScores(Kernel):
    """Upper bounds of the newest queries' scores for each block of the middle: float32 [layers, slots, G, blocks].

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

    def __call__(
        self, scores: Tensor, bounds: Tensor, queries: Tensor, block_table: Tensor, length: Tensor, rows: Rows
    ) -> None:
        layers = len(bounds)
        self.launch(
            (-(-self.stride // (WARPS * BLOCKS_OF_WARP)), self.heads.kv_heads, layers * rows.slots),
            rows,
            threads=WARPS * 32,
            scores=scores,
            bounds=bounds,
            asked=queries,
            block_table=block_table,
            length=length,
            LAYERS=layers,
        )

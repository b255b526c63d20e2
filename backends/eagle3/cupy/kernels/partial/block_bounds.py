"""Launches `block_bounds.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
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
        layers, h = len(k_pages), self.heads
        self.launch(
            (most, h.kv_heads, layers * rows.slots),
            rows,
            threads=h.head_dim,
            bounds=bounds,
            k_pages=k_pages,
            block_table=block_table,
            bounded=bounded,
            length=length,
            LAYERS=layers,
        )

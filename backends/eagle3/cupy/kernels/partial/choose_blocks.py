"""Launches `choose_blocks.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

THREADS: Final = 512


class ChooseBlocks(Kernel):
    """The blocks of the largest scores: int32 [layers, S, G, retrieval], ascending. The lowest wins an exact tie."""

    def __init__(self, heads: Heads, kept: KeptBlocks, slots: int) -> None:
        """`slots`: of the engine."""
        self.heads, self.kept, self.slots = heads, kept, slots
        self.stride = heads.max_blocks * (BLOCK // KEPT)
        super().__init__(
            "choose_blocks",
            **kept.middle,
            kv_heads=heads.kv_heads,
            retrieved=kept.retrieval,
            slots=slots,
            stride=self.stride,
            threads=THREADS,
        )

    def __call__(self, kept: Tensor, scores: Tensor, length: Tensor, rows: Rows) -> None:
        grid = self.heads.kv_heads, len(kept) * rows.slots
        self.launch(grid, rows, kept=kept, scores=scores, length=length, LAYERS=len(kept))

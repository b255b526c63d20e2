"""Launches `choose_blocks.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
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

    @announced
    def __call__(self, kept: Tensor, scores: Tensor, length: Tensor, rows: Rows) -> None:
        h, layers = self.heads, len(kept)
        expect("kept", kept, (layers, self.slots, h.kv_heads, self.kept.retrieval), torch.int32)
        expect("scores", scores, (layers * rows.slots, h.kv_heads, self.stride), torch.float32)
        self.launch(
            "choose_blocks",
            (h.kv_heads, layers * rows.slots),
            (THREADS,),
            {
                "kept": kept,
                "scores": scores,
                "length": length,
                "active": rows.active,
                "active_count": rows.active_count,
                "slots": rows.slots,
            },
        )

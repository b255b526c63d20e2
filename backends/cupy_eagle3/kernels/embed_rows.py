"""Launches `embed_rows.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.slots import Rows, Slots

THREADS = 256


class EmbedRows(Kernel):
    """x[r] = embedding of root and drafts of each slot: bfloat16 [V, H] → float32 [R, H]. Ends the draft phase."""

    def __init__(self, hidden: int, rows_per_slot: int, max_rows: int) -> None:
        super().__init__("embed_rows", hidden=hidden, rows=rows_per_slot, max_rows=max_rows, threads=THREADS)
        self.hidden = hidden

    def __call__(self, x: Tensor, embedding: Tensor, slots: Slots, rows: Rows) -> None:
        expect("x", x, (rows.most, self.hidden), torch.float32)
        expect("embedding", embedding, (1, self.hidden), torch.bfloat16)
        self.launch(
            "embed_rows",
            (rows.most,),
            (THREADS,),
            *(x, embedding, slots.root, slots.drafts, rows.active, rows.active_count, slots.stamps, slots.step),
        )

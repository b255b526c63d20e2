"""Launches `embed_rows.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows, Slots

THREADS = 512


class EmbedRows(Kernel):
    """x[r] = the embedding (bfloat16 [V, H]) of the last token or a draft of a slot: float32 [R, H].

    Also leaves the input of the norm with weight bfloat16 [H]. Ends the draft phase.
    """

    def __init__(self, hidden: int, rows_per_slot: int, max_rows: int) -> None:
        super().__init__("embed_rows", hidden=hidden, rows=rows_per_slot, max_rows=max_rows, threads=THREADS)
        self.hidden = hidden

    @announced
    def __call__(
        self, x: Tensor, pre_norm: PreNormRows, embedding: Tensor, norm_weight: Tensor, slots: Slots, rows: Rows
    ) -> None:
        pre_norm.check(rows.most, self.hidden)
        expect("norm weight", norm_weight, (self.hidden,), torch.bfloat16)
        expect("x", x, (rows.most, self.hidden), torch.float32)
        expect("embedding", embedding, (1, self.hidden), torch.bfloat16)
        self.launch(
            "embed_rows",
            (rows.most,),
            (THREADS,),
            {
                "x": x,
                "normed": pre_norm.rows,
                "squares": pre_norm.squares,
                "embedding": embedding,
                "norm_weight": norm_weight,
                "last_token": slots.last_token,
                "drafts": slots.drafts,
                "active": rows.active,
                "active_count": rows.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
            },
        )

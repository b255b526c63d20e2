"""Launches `prefill_stream.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.threads import row_threads


class PrefillStream(Kernel):
    """x float32 [R, H] becomes x + `added` (bfloat16 [R, H]), or the embeddings (bfloat16 [V, H]) of `tokens`
    (int64 [R]); and `normed` bfloat16 [R, H] becomes the RMSNorm of x with `weight` [H].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__("prefill_stream", hidden=hidden, threads=row_threads(hidden))
        self.hidden, self.threads = hidden, row_threads(hidden)

    @announced
    def __call__(
        self, normed: Tensor, x: Tensor, source: Tensor | tuple[Tensor, Tensor], weight: Tensor, eps: float
    ) -> None:
        """`source`: what is added, or (embedding, tokens)."""
        rows = len(x)
        expect("x", x, (rows, self.hidden), torch.float32)
        expect("normed", normed, (rows, self.hidden), torch.bfloat16)
        expect("norm weight", weight, (self.hidden,), torch.bfloat16)
        added = embedding = tokens = None
        if isinstance(source, Tensor):
            added = source
            expect("added", added, (rows, self.hidden), torch.bfloat16)
        else:
            embedding, tokens = source
            expect("embedding", embedding, (1, self.hidden), torch.bfloat16)
            expect("tokens", tokens, (rows,), torch.int64)
        self.launch(
            "prefill_stream",
            (rows,),
            (self.threads,),
            {
                "x": x,
                "added": added,
                "embedding": embedding,
                "tokens": tokens,
                "normed": normed,
                "weight": weight,
                "eps": eps,
            },
        )

"""Launches `prefill_draft.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.threads import row_threads
from specgate.backends.eagle3.cupy.kernels.rows.draft_input import InputWeights


class PrefillDraft(Kernel):
    """The draft's input [norm(embed(token)), norm(hidden)], bfloat16 [R, 2H], of `hidden` bfloat16 [R, H] and `tokens`
    int64 [R], each the one after its row.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__("prefill_draft", hidden=hidden, threads=row_threads(hidden))
        self.hidden, self.threads = hidden, row_threads(hidden)

    @announced
    def __call__(self, out: Tensor, hidden: Tensor, tokens: Tensor, weights: InputWeights, eps: float) -> None:
        rows = len(hidden)
        expect("out", out, (rows, 2 * self.hidden), torch.bfloat16)
        expect("hidden", hidden, (rows, self.hidden), torch.bfloat16)
        expect("tokens", tokens, (rows,), torch.int64)
        expect("embedding", weights.embedding, (1, self.hidden), torch.bfloat16)
        self.launch(
            "prefill_draft",
            (rows,),
            (self.threads,),
            {
                "input": out,
                "hidden": hidden,
                "embedding": weights.embedding,
                "tokens": tokens,
                "embedding_norm": weights.embedding_norm,
                "feature_norm": weights.feature_norm,
                "eps": eps,
            },
        )

"""Launches `prefill_draft.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.threads import row_threads
from specgate.backends.eagle3.cupy.kernels.rows.draft_input import InputWeights


class PrefillDraft(Kernel):
    """The draft's input [norm(embed(token)), norm(hidden)], bfloat16 [R, 2H], of `hidden` bfloat16 [R, H] and `tokens`
    int64 [R], each the one after its row.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__("prefill_draft", hidden=hidden, threads=row_threads(hidden))
        self.hidden, self.threads = hidden, row_threads(hidden)

    def __call__(self, out: Tensor, hidden: Tensor, tokens: Tensor, weights: InputWeights, eps: float) -> None:
        rows = len(hidden)
        self.launch((rows,), weights, input=out, hidden=hidden, tokens=tokens, eps=eps, R=rows)

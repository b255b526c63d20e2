"""Launches `draft_input.cu`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

THREADS = 1024


@dataclass(frozen=True, slots=True)
class InputWeights:
    """bfloat16: `embedding` [V, H], and the norms [H] of the embedded token and of the hidden state beside it."""

    embedding: Tensor
    embedding_norm: Tensor
    feature_norm: Tensor


class DraftInput(Kernel):
    """The draft's input [norm(embed(token)), norm(hidden)] for the rows to extend over, and the last row's stream.

    hidden float32 [R, H] → input bfloat16 [R, 2H] and stream float32 [S, H], whose row a is that of the a-th active
    slot.
    """

    def __init__(self, hidden: int, norm_before_residual: bool, rows_per_slot: int, max_rows: int) -> None:
        super().__init__(
            "draft_input",
            hidden=hidden,
            norm_before_residual=int(norm_before_residual),
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=THREADS,
        )
        self.hidden = hidden

    def __call__(
        self, out: Tensor, stream: Tensor, hidden: Tensor, weights: InputWeights, slots: Slots, rows: Rows, eps: float
    ) -> None:
        self.launch((rows.most,), slots, rows, weights, input=out, stream=stream, hidden=hidden, eps=eps)

"""Launches `prefill_stream.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.threads import row_threads


class PrefillStream(Kernel):
    """x float32 [R, H] becomes x + `added` (bfloat16 [R, H]), or the embeddings (bfloat16 [V, H]) of `tokens`
    (int64 [R]); and `normed` bfloat16 [R, H] becomes the RMSNorm of x with `weight` [H].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__("prefill_stream", hidden=hidden, threads=row_threads(hidden))
        self.hidden, self.threads = hidden, row_threads(hidden)

    def __call__(
        self, normed: Tensor, x: Tensor, source: Tensor | tuple[Tensor, Tensor], weight: Tensor, eps: float
    ) -> None:
        """`source`: what is added, or (embedding, tokens)."""
        added, (embedding, tokens) = (source, (None, None)) if isinstance(source, Tensor) else (None, source)
        read = {"added": added, "embedding": embedding, "tokens": tokens}
        self.launch((len(x),), x=x, **read, normed=normed, weight=weight, eps=eps, R=len(x))

"""Launches `prefill_route.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.checkpoints.geometry import ExpertGeometry

THREADS: Final = 128


class PrefillRoute(Kernel):
    """`chosen` int32 [R, k]: the experts of the k largest of logits + bias, in that order, the lower one first among
    equals; `weights` float32 [R, k]: the softmax over these k.
    """

    def __init__(self, experts: ExpertGeometry) -> None:
        super().__init__("prefill_route", experts=experts.count, per_token=experts.per_token, threads=THREADS)
        self.experts = experts

    def __call__(self, chosen: Tensor, weights: Tensor, logits: Tensor, bias: Tensor) -> None:
        """`logits` float32 [R, E]; `bias` bfloat16 [E]."""
        rows = len(logits)
        self.launch((-(-rows // THREADS),), chosen=chosen, weights=weights, logits=logits, bias=bias, rows=rows)

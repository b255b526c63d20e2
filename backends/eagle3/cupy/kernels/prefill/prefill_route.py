"""Launches `prefill_route.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import ARGUMENT, Kernel, announced, expect
from specgate.checkpoints.geometry import ExpertGeometry

THREADS: Final = 128


class PrefillRoute(Kernel):
    """`chosen` int32 [R, k]: the experts of the k largest of logits + bias, in that order, the lower one first among
    equals; `weights` float32 [R, k]: the softmax over these k.
    """

    def __init__(self, experts: ExpertGeometry) -> None:
        super().__init__("prefill_route", experts=experts.count, per_token=experts.per_token, threads=THREADS)
        self.experts = experts

    @announced
    def __call__(self, chosen: Tensor, weights: Tensor, logits: Tensor, bias: Tensor) -> None:
        """`logits` float32 [R, E]; `bias` bfloat16 [E]."""
        rows, k = len(logits), self.experts.per_token
        expect("chosen", chosen, (rows, k), torch.int32)
        expect("weights", weights, (rows, k), torch.float32)
        expect("logits", logits, (rows, self.experts.count), torch.float32)
        expect("bias", bias, (self.experts.count,), torch.bfloat16)
        arguments: dict[str, ARGUMENT] = {
            "chosen": chosen,
            "weights": weights,
            "logits": logits,
            "bias": bias,
            "rows": rows,
        }
        self.launch("prefill_route", (-(-rows // THREADS),), (THREADS,), arguments)

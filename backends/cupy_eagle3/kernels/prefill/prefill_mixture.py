"""Launches `prefill_mixture.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.prefill.threads import row_threads
from specgate.eagle3.geometry import ExpertGeometry


class PrefillMixture(Kernel):
    """x float32 [R, H] += Σ_j weight_j · (out_j + bias) over the k experts of a row, in their order; and `normed`
    bfloat16 [R, H] becomes the RMSNorm of x.
    """

    def __init__(self, hidden: int, experts: ExpertGeometry) -> None:
        super().__init__("prefill_mixture", hidden=hidden, per_token=experts.per_token, threads=row_threads(hidden))
        self.hidden, self.experts, self.threads = hidden, experts, row_threads(hidden)

    @announced
    def __call__(
        self,
        normed: Tensor,
        x: Tensor,
        out: Tensor,
        bias: Tensor,
        routing: tuple[Tensor, Tensor, Tensor],
        norm: tuple[Tensor, float],
    ) -> None:
        """`out` bfloat16 [R · k, H], in the order of experts; `bias` bfloat16 [E, H]. `routing`: of each row and place,
        where it lies in `out`, int32 [R, k], its expert, int32 [R, k], and its weight, float32 [R, k]. `norm`: its
        weight bfloat16 [H], and its epsilon.
        """
        rows, k = len(x), self.experts.per_token
        place, chosen, weights = routing
        expect("normed", normed, (rows, self.hidden), torch.bfloat16)
        expect("x", x, (rows, self.hidden), torch.float32)
        expect("out", out, (rows * k, self.hidden), torch.bfloat16)
        expect("bias", bias, (self.experts.count, self.hidden), torch.bfloat16)
        expect("place", place, (rows, k), torch.int32)
        expect("chosen", chosen, (rows, k), torch.int32)
        expect("weights", weights, (rows, k), torch.float32)
        expect("norm weight", norm[0], (self.hidden,), torch.bfloat16)
        self.launch(
            "prefill_mixture",
            (rows,),
            (self.threads,),
            {
                "normed": normed,
                "x": x,
                "out": out,
                "bias": bias,
                "place": place,
                "chosen": chosen,
                "weights": weights,
                "weight": norm[0],
                "eps": norm[1],
            },
        )

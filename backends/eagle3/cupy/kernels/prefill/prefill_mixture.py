"""Launches `prefill_mixture.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.threads import row_threads
from specgate.checkpoints.geometry import ExpertGeometry

Places = tuple[Tensor, Tensor, Tensor]
"""Of each row and place: where it lies among the sorted pairs, int32 [R, k], its expert, int32 [R, k], and its weight,
float32 [R, k].
"""


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
        routing: Places,
        norm: tuple[Tensor, float],
    ) -> None:
        """`out` bfloat16 [R · k, H], in the order of experts; `bias` bfloat16 [E, H]. `norm`: its weight bfloat16 [H],
        and its epsilon.
        """
        rows = len(x)
        place, chosen, weights = routing
        expect("normed", normed, (rows, self.hidden), torch.bfloat16)
        expect("x", x, (rows, self.hidden), torch.float32)
        check_pairs(out, bias, routing, rows, self.hidden, self.experts)
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


class PrefillMixtureSum(Kernel):
    """`total` bfloat16 [R, H] = Σ_j weight_j · (out_j + bias) over the k experts of a row, in their order, rounded
    once: what one of several GPUs has of a mixture.
    """

    def __init__(self, hidden: int, experts: ExpertGeometry) -> None:
        threads = row_threads(hidden)
        super().__init__("prefill_mixture", hidden=hidden, per_token=experts.per_token, threads=threads, partial=1)
        self.hidden, self.experts, self.threads = hidden, experts, threads

    @announced
    def __call__(self, total: Tensor, out: Tensor, bias: Tensor, routing: Places) -> None:
        """`out` bfloat16, all pairs in the order of experts, […, H]; `bias` bfloat16 [E, H]."""
        place, chosen, weights = routing
        expect("total", total, (len(place), self.hidden), torch.bfloat16)
        check_pairs(out, bias, routing, len(place), self.hidden, self.experts)
        self.launch(
            "prefill_mixture",
            (len(place),),
            (self.threads,),
            {
                "normed": total,
                "x": None,
                "out": out,
                "bias": bias,
                "place": place,
                "chosen": chosen,
                "weights": weights,
                "weight": None,
                "eps": 0.0,
            },
        )


def check_pairs(out: Tensor, bias: Tensor, routing: Places, rows: int, hidden: int, experts: ExpertGeometry) -> None:
    """Raise ValueError for what does not belong to `rows` rows, or more, of such a mixture."""
    place, chosen, weights = routing
    expect("out", out, (rows * experts.per_token, hidden), torch.bfloat16)
    expect("bias", bias, (experts.count, hidden), torch.bfloat16)
    expect("place", place, (rows, experts.per_token), torch.int32)
    expect("chosen", chosen, (rows, experts.per_token), torch.int32)
    expect("weights", weights, (rows, experts.per_token), torch.float32)

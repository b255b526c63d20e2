"""Launches `prefill_mixture.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
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
        pairs = dict(zip(("place", "chosen", "weights"), routing, strict=True))
        operands = {"normed": normed, "x": x, "out": out, "bias": bias, **pairs}
        self.launch((len(x),), **operands, weight=norm[0], eps=norm[1], R=len(x), EXPERTS=self.experts.count)


class PrefillMixtureSum(Kernel):
    """`total` bfloat16 [R, H] = Σ_j weight_j · (out_j + bias) over the k experts of a row, in their order, rounded
    once: what one of several GPUs has of a mixture.
    """

    def __init__(self, hidden: int, experts: ExpertGeometry) -> None:
        threads = row_threads(hidden)
        super().__init__("prefill_mixture", hidden=hidden, per_token=experts.per_token, threads=threads, partial=1)
        self.hidden, self.experts, self.threads = hidden, experts, threads

    def __call__(self, total: Tensor, out: Tensor, bias: Tensor, routing: Places) -> None:
        """`out` bfloat16, all pairs in the order of experts, […, H]; `bias` bfloat16 [E, H]."""
        rows, pairs = len(routing[0]), dict(zip(("place", "chosen", "weights"), routing, strict=True))
        self.launch((rows,), normed=total, out=out, bias=bias, **pairs, eps=0.0, R=rows, EXPERTS=self.experts.count)

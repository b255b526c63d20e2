"""Launches `prefill_swiglu.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.threads import GROUP
from specgate.checkpoints.geometry import ExpertGeometry

THREADS: Final = 256


class PrefillSwiglu(Kernel):
    """act = gate · σ(alpha · gate) · (up + 1), bfloat16 [R, F], of `both` bfloat16 [R, 2F], gates at even places, each
    row with the bias of its expert added.
    """

    def __init__(self, intermediate: int, experts: ExpertGeometry) -> None:
        super().__init__(
            "prefill_swiglu", intermediate=intermediate, alpha=experts.alpha, limit=experts.limit, threads=THREADS
        )
        self.intermediate, self.count = intermediate, experts.count

    def __call__(self, act: Tensor, both: Tensor, bias: Tensor, experts: Tensor) -> None:
        """`bias` bfloat16 [E, 2F]; `experts` int32 [R]: of each row."""
        rows = len(both)
        grid = (-(-rows * (self.intermediate // GROUP) // THREADS),)
        self.launch(grid, act=act, both=both, bias=bias, experts=experts, pairs=rows, EXPERTS=self.count)

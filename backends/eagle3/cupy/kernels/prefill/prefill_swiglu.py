"""Launches `prefill_swiglu.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import ARGUMENT, Kernel, announced, expect
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

    @announced
    def __call__(self, act: Tensor, both: Tensor, bias: Tensor, experts: Tensor) -> None:
        """`bias` bfloat16 [E, 2F]; `experts` int32 [R]: of each row."""
        rows = len(both)
        expect("act", act, (rows, self.intermediate), torch.bfloat16)
        expect("both", both, (rows, 2 * self.intermediate), torch.bfloat16)
        expect("bias", bias, (self.count, 2 * self.intermediate), torch.bfloat16)
        expect("experts", experts, (rows,), torch.int32)
        blocks = -(-rows * (self.intermediate // GROUP) // THREADS)
        arguments: dict[str, ARGUMENT] = {"act": act, "both": both, "bias": bias, "experts": experts, "pairs": rows}
        self.launch("prefill_swiglu", (blocks,), (THREADS,), arguments)

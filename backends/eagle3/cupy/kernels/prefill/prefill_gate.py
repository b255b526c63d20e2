"""Launches `prefill_gate.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.threads import GROUP

THREADS: Final = 256


class PrefillGate(Kernel):
    """out = SiLU(gate) · up: bfloat16 [R, 2F], gates first → bfloat16 [R, F]."""

    def __init__(self, intermediate: int) -> None:
        super().__init__("prefill_gate", intermediate=intermediate, threads=THREADS)
        self.intermediate = intermediate

    def __call__(self, out: Tensor, gate_up: Tensor) -> None:
        rows = len(gate_up)
        self.launch((-(-rows * (self.intermediate // GROUP) // THREADS),), out=out, gate_up=gate_up, rows=rows)

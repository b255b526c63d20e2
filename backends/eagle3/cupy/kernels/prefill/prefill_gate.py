"""Launches `prefill_gate.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.threads import GROUP

THREADS: Final = 256


class PrefillGate(Kernel):
    """out = SiLU(gate) · up: bfloat16 [R, 2F], gates first → bfloat16 [R, F]."""

    def __init__(self, intermediate: int) -> None:
        super().__init__("prefill_gate", intermediate=intermediate, threads=THREADS)
        self.intermediate = intermediate

    @announced
    def __call__(self, out: Tensor, gate_up: Tensor) -> None:
        rows = len(gate_up)
        expect("gate_up", gate_up, (rows, 2 * self.intermediate), torch.bfloat16)
        expect("out", out, (rows, self.intermediate), torch.bfloat16)
        blocks = -(-rows * (self.intermediate // GROUP) // THREADS)
        self.launch("prefill_gate", (blocks,), (THREADS,), {"out": out, "gate_up": gate_up, "rows": rows})

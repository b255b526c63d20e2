"""Launches `rms_norm.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.slots import Rows

THREADS = 256


class RmsNorm(Kernel):
    """out = x · weight / sqrt(mean(x²) + eps): float32 [R, H] → bfloat16 [R, H]."""

    def __init__(self, hidden: int) -> None:
        super().__init__("rms_norm", hidden=hidden, threads=THREADS)
        self.hidden = hidden

    def __call__(self, out: Tensor, x: Tensor, weight: Tensor, rows: Rows, eps: float) -> None:
        expect("x", x, (rows.most, self.hidden), torch.float32)
        expect("out", out, (rows.most, self.hidden), torch.bfloat16)
        expect("weight", weight, (self.hidden,), torch.bfloat16)
        self.launch("rms_norm", (rows.most,), (THREADS,), out, x, weight, rows.active_count, rows.per_slot, eps)

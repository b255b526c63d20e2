"""Launches `matmul_rows.cu`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.slots import Rows

MAX_ROWS: Final = 64
FEATURES: Final = 16
"""Output features that one block makes."""
WARPS: Final = 16
"""Warps that split k. Part of the arithmetic: another number adds in another order."""
IN_FLIGHT: Final = 2
"""Chunks of k that a warp loads before it multiplies the first."""


class Epilogue(IntEnum):
    """What becomes of the sums: see `matmul_rows.cu`."""

    PLAIN = 0
    RESIDUAL = 1
    SWIGLU = 2


class MatmulRows(Kernel):
    """out = x · weightᵀ for few rows: bfloat16 x [R, K] and weight [N, K] (SWIGLU: [2N, K]).

    PLAIN writes float32 [R, N], RESIDUAL adds to it, SWIGLU writes bfloat16 [R, N].
    """

    def __init__(self, n_out: int, k_in: int, epilogue: Epilogue, rows: int) -> None:
        """`rows`: the most that this launcher will see; at most MAX_ROWS."""
        if not 0 < rows <= MAX_ROWS:
            raise ValueError(f"rows = {rows}: 1 to {MAX_ROWS} rows are needed")
        self.n_out, self.k_in, self.epilogue, self.rows = n_out, k_in, epilogue, rows
        tiles = -(-rows // 8) * (2 if epilogue is Epilogue.SWIGLU else 1)
        super().__init__(
            "matmul_rows",
            n_out=n_out,
            k_in=k_in,
            epilogue=epilogue.value,
            row_tiles=-(-rows // 8),
            warps=WARPS,
            # More tiles need the registers that more loads in flight would take.
            in_flight=IN_FLIGHT if tiles <= 8 else 1,
        )

    def __call__(self, out: Tensor, x: Tensor, weight: Tensor, rows: Rows) -> None:
        swiglu = self.epilogue is Epilogue.SWIGLU
        if rows.most > self.rows:
            raise ValueError(f"{rows.most} rows for a launcher of {self.rows}")
        expect("out", out, (rows.most, self.n_out), torch.bfloat16 if swiglu else torch.float32)
        # The last tile of eight rows is read whole.
        expect("x", x, (-(-rows.most // 8) * 8, self.k_in), torch.bfloat16)
        expect("weight", weight, ((1 + swiglu) * self.n_out, self.k_in), torch.bfloat16)
        blocks = -(-self.n_out // FEATURES)
        self.launch("matmul_rows", (blocks,), (WARPS * 32,), out, x, weight, rows.active_count, rows.per_slot)

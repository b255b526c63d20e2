"""Launches `feature_capture.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows

THREADS = 1024


class FeatureCapture(Kernel):
    """features[slot, t, chunk] = x[r]: float32 [R, H] → bfloat16 [S, T, n·H], for the draft's next extension."""

    def __init__(self, hidden: int, features: int, rows_per_slot: int, max_rows: int) -> None:
        super().__init__(
            "feature_capture",
            hidden=hidden,
            features=features,
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=THREADS,
        )
        self.hidden, self.features, self.max_rows = hidden, features, max_rows

    @announced
    def __call__(self, features: Tensor, x: Tensor, rows: Rows, chunk: int) -> None:
        expect("features", features, (rows.slots, self.max_rows, self.features * self.hidden), torch.bfloat16)
        expect("x", x, (rows.most, self.hidden), torch.float32)
        self.launch(
            "feature_capture",
            (rows.most,),
            (THREADS,),
            {
                "features": features,
                "x": x,
                "active": rows.active,
                "active_count": rows.active_count,
                "chunk": chunk,
            },
        )

"""Launches `feature_rows.cu`."""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

THREADS = 1024


class FeatureNorm(IntEnum):
    """Norm of a draft's features before their projection (`fc`)."""

    NONE = 0
    EACH_STREAM = 1
    ALL_STREAMS = 2


class FeatureRows(Kernel):
    """Packs the features that the draft extends over: bfloat16 [S, T, n·H] → [R, n·H], normed with `weight` [n·H]."""

    def __init__(self, hidden: int, features: int, norm: FeatureNorm, rows_per_slot: int, max_rows: int) -> None:
        super().__init__(
            "feature_rows",
            hidden=hidden,
            features=features,
            norm=norm.value,
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=THREADS,
        )
        self.width, self.max_rows, self.norm = features * hidden, max_rows, norm

    def __call__(
        self, out: Tensor, features: Tensor, weight: Tensor | None, slots: Slots, rows: Rows, eps: float
    ) -> None:
        self.launch((rows.most,), slots, rows, out=out, features=features, weight=weight, eps=eps)

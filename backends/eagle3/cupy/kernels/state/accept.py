"""Launches `accept.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class Accept(Kernel):
    """Number of drafts of each slot that the target agrees with: the longest prefix that equals its choices (int64
    [R]).

    The choices are cleared again.
    """

    def __init__(self, rows_per_slot: int, max_rows: int) -> None:
        super().__init__("accept", rows=rows_per_slot, max_rows=max_rows)
        self.max_rows = max_rows

    def __call__(self, choices: Tensor, slots: Slots, rows: Rows) -> None:
        self.launch((1,), slots, rows, threads=rows.slots, choices=choices)

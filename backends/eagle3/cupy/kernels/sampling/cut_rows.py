"""Launches `cut_rows.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import WARP, Division
from specgate.backends.eagle3.cupy.kernels.sampling.weigh_rows import ranked
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

LISTED: Final = 1 << 14
"""Columns of a row that a list has room for: 128 KiB, a quarter of a large vocabulary's logits. Of a model's row
a bucket has some hundreds, and top-k keeps few. A row that needs more is read again and again.
"""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Results of `WeighRows`, `edges` int64 [R, EDGE], and workspace for lists of columns: `listed` int64 [R, LISTED],
    and `list_sizes` int32 [R] and `finished` int32 [R], which are zero before and after.
    """

    edges: Tensor
    listed: Tensor
    list_sizes: Tensor
    finished: Tensor


class CutRows(Kernel):
    """Leaves in `cuts` (int64 [R]) the rank of the last column of each row that the filters keep, as `rank.cuh` has it.

    `weighed`: None where neither top-k nor top-p is asked for. `choices` int64 [R]: the greedy choices, which stay.
    """

    def __init__(
        self, vocab: int, temperature: float, *, top_k: int, top_p: float, min_p: float, listed: int = LISTED
    ) -> None:
        self.vocab, self.division, self.listed = vocab, Division(vocab), listed
        self.weighed = ranked(vocab, top_k) > 0 or top_p < 1
        self.threads = self.division.threads if self.weighed else WARP
        super().__init__(
            "cut_rows",
            temperature=float(temperature),
            top_k=ranked(vocab, top_k),
            top_p=float(top_p),
            min_p=float(min_p),
            listed=listed,
            **{**self.division.constants, "threads": self.threads},
        )

    def __call__(self, cuts: Tensor, weighed: Weighed | None, logits: Tensor, choices: Tensor, rows: Rows) -> None:
        blocks = self.division.blocks if self.weighed else 1
        self.launch((blocks, rows.most), weighed, rows, cuts=cuts, logits=logits, choices=choices)

"""Launches `tree_top.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

THREADS: Final = 256
COLUMNS_PER_PART: Final = 4096
"""Columns that a block takes: enough blocks to read a few rows fast, and few enough lists to join."""
MOST_PARTS: Final = 32
"""A lane of a warp joins one list."""


def parts_of(columns: int) -> int:
    """Return the number of blocks that share a row."""
    return min(MOST_PARTS, -(-columns // COLUMNS_PER_PART))


class TreeTop(Kernel):
    """The `top` largest of each row of logits, float32 [R, V], in parts: int64 [R, parts, top], packed as choices.

    Of equal logits the lower column comes first. NaN and infinity come before every number. Also what a softmax needs
    of each part: float32 [R, parts, 2], its largest logit and the sum of the powers of e below that.
    """

    def __init__(self, columns: int, top: int) -> None:
        """Raises ValueError for more tokens than there are columns."""
        if not 0 < top <= columns:
            raise ValueError(f"the {top} largest of {columns} columns")
        self.columns, self.top, self.parts = columns, top, parts_of(columns)
        super().__init__(
            "tree_top",
            columns=columns,
            wide=1 if columns % 4 else 4,
            top=top,
            parts=self.parts,
            threads=THREADS,
        )

    def __call__(self, candidates: Tensor, sums: Tensor, logits: Tensor, rows: Rows) -> None:
        """`candidates`: int64, at least R · parts · top; `sums`: float32, at least [R · parts, 2]."""
        self.launch((self.parts, rows.most), rows, candidates=candidates, sums=sums, logits=logits)

"""Launches `weigh_rows.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

BUCKETS: Final = 2048
"""Buckets of a row, as `masses.cuh` has them."""
EDGE: Final = 3
"""Numbers of an edge: its bucket, the mass before it, the mass of the row."""


def ranked(vocab: int, top_k: int) -> int:
    """`top_k` as kernels take it: one of all columns or more is none, which is 0."""
    return top_k if top_k < vocab else 0


class WeighRows(Kernel):
    """Leaves in `edges` (int64 [R, EDGE]) in which bucket of each row of `logits` (float32 [R, V]) top-k ends or,
    without it, top-p.

    `sums` int64 [R, BUCKETS] and `finished` int32 [R] are zero before and after. `choices` int64 [R]: the greedy
    choices, which stay.
    """

    def __init__(self, vocab: int, temperature: float, *, top_k: int, top_p: float) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        super().__init__(
            "weigh_rows",
            temperature=float(temperature),
            top_k=ranked(vocab, top_k),
            top_p=float(top_p),
            **self.division.constants,
        )

    def __call__(
        self, edges: Tensor, sums: Tensor, finished: Tensor, logits: Tensor, choices: Tensor, rows: Rows
    ) -> None:
        operands = {"edges": edges, "sums": sums, "finished": finished, "logits": logits, "choices": choices}
        self.launch((self.division.blocks, rows.most), rows, **operands)

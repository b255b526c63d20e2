"""Launches `weigh_rows.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.sampling.blocks import Division
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows

BUCKETS: Final = 2048
"""Buckets of a row, as `masses.cuh` has them."""


class WeighRows(Kernel):
    """Adds to `counts` (int32 [R, BUCKETS]) the columns of each row of `logits` (float32 [R, V]) by bucket, and to
    `masses` (int64 [R, BUCKETS]) their mass at `temperature`. Both are zero before.

    `choices` int64 [R]: the greedy choices, which stay.
    """

    def __init__(self, vocab: int, temperature: float) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        super().__init__("weigh_rows", temperature=float(temperature), **self.division.constants)

    @announced
    def __call__(self, masses: Tensor, counts: Tensor, logits: Tensor, choices: Tensor, rows: Rows) -> None:
        expect("masses", masses, (rows.most, BUCKETS), torch.int64)
        expect("counts", counts, (rows.most, BUCKETS), torch.int32)
        expect("logits", logits, (rows.most, self.vocab), torch.float32)
        expect("choices", choices, (rows.most,), torch.int64)
        self.launch(
            "weigh_rows",
            (self.division.blocks, rows.most),
            (self.division.threads,),
            {
                "masses": masses,
                "counts": counts,
                "logits": logits,
                "choices": choices,
                "active_count": rows.active_count,
                "rows_per_slot": rows.per_slot,
            },
        )

"""Launches `cut_rows.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect
from specgate.backends.cupy_eagle3.kernels.sampling.blocks import threads_of
from specgate.backends.cupy_eagle3.kernels.sampling.weigh_rows import BUCKETS
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows

THREADS: Final = 1024


class CutRows(Kernel):
    """Leaves in `cuts` (int64 [R]) the rank of the last column of each row that the filters keep, as `rank.cuh` has it.

    `masses` and `counts` are as `WeighRows` leaves them, and cleared again; None where neither top-k nor top-p is asked
    for. `choices` int64 [R]: the greedy choices, which stay.
    """

    def __init__(self, vocab: int, temperature: float, *, top_k: int, top_p: float, min_p: float) -> None:
        """A `top_k` of all columns or more is none, as 0 is."""
        self.vocab, self.threads = vocab, threads_of(vocab, THREADS)
        self.weighed = 0 < top_k < vocab or top_p < 1
        super().__init__(
            "cut_rows",
            vocab=vocab,
            threads=self.threads,
            temperature=float(temperature),
            top_k=top_k if top_k < vocab else 0,
            top_p=float(top_p),
            min_p=float(min_p),
        )

    @announced
    def __call__(
        self,
        cuts: Tensor,
        masses: Tensor | None,
        counts: Tensor | None,
        logits: Tensor,
        choices: Tensor,
        rows: Rows,
    ) -> None:
        if {masses is not None, counts is not None} != {self.weighed}:
            raise ValueError(f"made for weighed = {self.weighed}")
        if masses is not None and counts is not None:
            expect("masses", masses, (rows.most, BUCKETS), torch.int64)
            expect("counts", counts, (rows.most, BUCKETS), torch.int32)
        expect("logits", logits, (rows.most, self.vocab), torch.float32)
        for name, tensor in (("choices", choices), ("cuts", cuts)):
            expect(name, tensor, (rows.most,), torch.int64)
        self.launch(
            "cut_rows",
            (rows.most,),
            (self.threads,),
            {
                "cuts": cuts,
                "masses": masses,
                "counts": counts,
                "logits": logits,
                "choices": choices,
                "active_count": rows.active_count,
                "rows_per_slot": rows.per_slot,
            },
        )

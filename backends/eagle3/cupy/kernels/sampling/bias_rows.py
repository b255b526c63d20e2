"""Launches `bias_rows.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows


class BiasRows(Kernel):
    """Adds `bias` (float32 [V]) to every row of `logits` (float32 [R, V]) and makes `choices` (int64 [R]) anew.

    `best` int64 [R] and `finished` int32 [R] are zero before and after.
    """

    def __init__(self, vocab: int) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        super().__init__("bias_rows", **self.division.constants)

    @announced
    def __call__(
        self, logits: Tensor, choices: Tensor, best: Tensor, finished: Tensor, bias: Tensor, rows: Rows
    ) -> None:
        expect("logits", logits, (rows.most, self.vocab), torch.float32)
        expect("bias", bias, (self.vocab,), torch.float32)
        for name, tensor in (("choices", choices), ("best", best)):
            expect(name, tensor, (rows.most,), torch.int64)
        expect("finished", finished, (rows.most,), torch.int32)
        self.launch(
            "bias_rows",
            (self.division.blocks, rows.most),
            (self.division.threads,),
            {
                "logits": logits,
                "choices": choices,
                "best": best,
                "finished": finished,
                "bias": bias,
                "active_count": rows.active_count,
                "rows_per_slot": rows.per_slot,
            },
        )

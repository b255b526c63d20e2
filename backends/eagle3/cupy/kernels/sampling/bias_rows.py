"""Launches `bias_rows.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows


class BiasRows(Kernel):
    """Adds `bias` (float32 [V]) to every row of `logits` (float32 [R, V]) and makes `choices` (int64 [R]) anew.

    `best` int64 [R] and `finished` int32 [R] are zero before and after.
    """

    def __init__(self, vocab: int) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        super().__init__("bias_rows", **self.division.constants)

    def __call__(
        self, logits: Tensor, choices: Tensor, best: Tensor, finished: Tensor, bias: Tensor, rows: Rows
    ) -> None:
        operands = {"logits": logits, "choices": choices, "best": best, "finished": finished, "bias": bias}
        self.launch((self.division.blocks, rows.most), rows, **operands)

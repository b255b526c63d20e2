"""Launches `count_tokens.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class CountTokens(Kernel):
    """Counts in `history` (int32 [S, V]) the newest tokens of every active slot, which are those that the draft has yet
    to extend over.
    """

    def __init__(self, vocab: int, max_rows: int) -> None:
        super().__init__("count_tokens", vocab=vocab, max_rows=max_rows)
        self.vocab, self.max_rows = vocab, max_rows

    def __call__(self, history: Tensor, slots: Slots, rows: Rows) -> None:
        self.launch((rows.slots,), slots, rows, threads=self.max_rows, history=history)

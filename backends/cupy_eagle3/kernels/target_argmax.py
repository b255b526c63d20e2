"""Launches `target_argmax.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.slots import Rows

THREADS = 256
SPLITS = 64


class TargetArgmax(Kernel):
    """choices[r] (int64 [R], zero before): largest of float32 logits [R, V] with its index; ties to the lowest."""

    def __init__(self, vocab: int) -> None:
        super().__init__("target_argmax", vocab=vocab, threads=THREADS, splits=SPLITS)
        self.vocab = vocab

    def __call__(self, choices: Tensor, logits: Tensor, rows: Rows) -> None:
        expect("choices", choices, (rows.most,), torch.int64)
        expect("logits", logits, (rows.most, self.vocab), torch.float32)
        self.launch("target_argmax", (SPLITS, rows.most), (THREADS,), choices, logits, rows.active_count, rows.per_slot)

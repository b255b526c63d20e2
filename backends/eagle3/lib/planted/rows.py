"""Fill a tensor block by block, so that generating it takes little more memory than the tensor itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

RowMaker = Callable[[Tensor], Tensor]
"""(row indices, int64 [n]) → the rows, float32 [n, width]."""

WordMaker = Callable[[Tensor], Tensor]
"""(indices, int32 [n], which may be overwritten) → the elements there, integers [n]."""

BLOCK: Final = 1 << 20
GPU_BLOCK: Final = 1 << 24
"""Elements generated at once. A few CPU blocks fit into a CPU's cache; a GPU needs launches large enough to fill it."""


def bfloat16_matrix(shape: tuple[int, int], make: RowMaker, device: torch.device) -> Tensor:
    """A bfloat16 matrix of the rows that `make` returns; each element is rounded once, to nearest even."""
    height, width = shape
    matrix = torch.empty(shape, dtype=torch.bfloat16, device=device)
    step = max(1, block_of(device) // width)
    for start in range(0, height, step):
        stop = min(start + step, height)
        matrix[start:stop] = make(torch.arange(start, stop, device=device))
    return matrix


def filled(flat: Tensor, make: WordMaker) -> None:
    """Fill the vector `flat` of integers with what `make` returns for the indices of its elements."""
    count, step = len(flat), block_of(flat.device)
    for start in range(0, count, step):
        stop = min(start + step, count)
        flat[start:stop] = make(torch.arange(start, stop, dtype=torch.int32, device=flat.device))


def block_of(device: torch.device) -> int:
    """Elements to generate at once on `device`."""
    return BLOCK if device.type == "cpu" else GPU_BLOCK

"""A sum of tensors that depends on every bit and on its place. It needs no copy to the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

_PRIME: Final = 65_521
"""Weights repeat after so many elements, so that two of them that change places give another sum."""


def checksum(tensors: Iterable[Tensor]) -> int:
    """The sum over all tensors, modulo 2^63."""
    total = 0
    for tensor in tensors:
        bits = tensor.contiguous().view(torch.int16).flatten().to(torch.int64)
        weights = torch.arange(len(bits), device=bits.device) % _PRIME + 1
        total = (total * _PRIME + int((bits * weights).sum())) % (1 << 63)
    return total

"""Numbers behind codes, read from tables, two at a time.

torch turns E4M3 into wider numbers one by one on a CPU. A table that holds the numbers of every byte, or of every two
bytes, is read many times as fast, and gives the same bits: it is made by that very conversion.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor

OF_TWO: Final = {2: torch.int32, 4: torch.int64}
"""Itemsize of a number → what moves two of them at once, without looking at them."""


def two_at_once(numbers: Tensor) -> Tensor:
    """`numbers`, the last axis even and contiguous, as integers that hold two each: [..., D/2]."""
    return numbers.view(OF_TWO[numbers.itemsize])


@cache
def e4m3_pairs(dtype: torch.dtype) -> Tensor:
    """The numbers of two bytes of E4M3 in `dtype`, by the two bytes as uint16: [65,536] as `two_at_once` has them."""
    every_two = torch.arange(1 << 16).to(torch.uint16).view(torch.uint8)
    return two_at_once(every_two.view(torch.float8_e4m3fn).to(dtype))


@cache
def nibble_pairs(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The `values`, 16 of them, of the low and of the high half of a byte: [256] as `two_at_once` has them."""
    every = torch.arange(256)
    both = torch.tensor(values, dtype=dtype)[torch.stack((every & 15, every >> 4), dim=-1)]
    return two_at_once(both).flatten().to(device)


def look_up(pairs: Tensor, codes: Tensor, out: Tensor) -> None:
    """Write what `pairs` has for each of `codes`, integers, into the contiguous `out`, which takes two numbers each."""
    torch.index_select(pairs, 0, codes.int().flatten(), out=two_at_once(out).view(-1))

"""Tensors of MXFP4 numbers, decoded and encoded.

A number times its scale has so few bits that it is exact in bfloat16 and float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.checkpoints.mxfp4 import BIAS, BLOCK, BYTES, NO_NUMBER, VALUES


def decoded(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers [..., 32 · n] in `dtype` of `blocks` uint8 [..., n, 16] and `scales` uint8 [..., n]."""
    exact = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    values = torch.tensor(VALUES, dtype=exact, device=blocks.device)
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1)  # of every byte, lower half first
    words = pairs.view(torch.int32 if exact == torch.bfloat16 else torch.int64).squeeze(-1)[blocks.int()]
    factors = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - BIAS).to(exact)
    return (words.view(exact) * factors[..., None]).flatten(-2).to(dtype)


def encoded(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(blocks, scales) nearest to `numbers` [..., 32 · n]; ties go to the even number, as the MX specification asks.

    The scale of a block is the power of two of its largest number, less the two that the largest element has: what MX
    1.0, section 6.3, does. Numbers beyond 6 scales become 6 scales.
    """
    grouped = numbers.float().view(*numbers.shape[:-1], -1, BLOCK)
    largest = grouped.abs().amax(-1)
    _, exponent = torch.frexp(largest)  # largest = m · 2^exponent with 0.5 ≤ m < 1
    shift = torch.where(largest > 0, exponent - 3, -BIAS).clamp(-BIAS, NO_NUMBER - 1 - BIAS)
    scaled = torch.ldexp(grouped, -shift[..., None])
    size = scaled.abs()
    steps = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = (torch.round(size / steps) * steps).clamp(max=VALUES[7])
    table = torch.tensor(VALUES[:8], dtype=torch.float32, device=numbers.device)
    codes = torch.bucketize(rounded, table) + 8 * scaled.signbit()
    low, high = codes.view(*codes.shape[:-1], BYTES, 2).unbind(-1)
    return (low | high << 4).to(torch.uint8), (shift + BIAS).to(torch.uint8)

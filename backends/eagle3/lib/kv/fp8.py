"""Numbers as E4M3 (OCP 8-bit floating point, finite numbers and NaN, no infinities), with a scale beside them.

A scale is of a block of positions of one head, and made from the first position of the block alone: what a later one
holds changes nothing that is cached already. So what is cached of a token does not depend on the tokens behind it, a
rejected draft among them, and speculation caches what plain decoding does. The scale is a power of two, by which
nothing is rounded, and leaves later positions room: the first one fills 1/HEADROOM of the range. That costs nothing,
since numbers with an exponent of their own are as precise anywhere between 2^-6 and 448. What lies beyond saturates.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.lookup import e4m3_pairs, look_up

LARGEST: Final = 448.0
HEADROOM: Final = 64.0
"""How many times as large as in the first position of its block a number may be."""
LEAST: Final = 2.0**-126


def scales_of(largest: Tensor) -> Tensor:
    """The scales of blocks whose first position has the absolute value `largest`, float32 ≥ 0; 1 where that is 0, or
    below 2^-126: GPUs may take such numbers for zeros.
    """
    return powers_above(largest, HEADROOM / LARGEST, -126)


def powers_above(largest: Tensor, share: float, lowest: int) -> Tensor:
    """The least powers of two that are at least `share` · `largest` and 2^`lowest`, float32; 1 for what counts as 0."""
    # By the bits of the numbers: a logarithm may be rounded over a power of two, and a power off it, otherwise on a GPU
    # than on a CPU.
    mantissa, exponent = torch.frexp(largest.float() * share)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(min=lowest)
    powers = ((exponent + 127).int() << 23).view(torch.float32)
    return torch.where(largest >= LEAST, powers, torch.ones_like(powers))


def encoded(numbers: Tensor, scales: Tensor) -> Tensor:
    """`numbers`, float32, over `scales`, which broadcast, as the bits of E4M3, uint8: the nearest, ties to even, and
    ±448 for what lies beyond.
    """
    return (numbers / scales).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 numbers that `encoded` has made `codes` of."""
    return codes.view(torch.float8_e4m3fn).float() * scales


def unscaled(codes: Tensor, out: Tensor) -> None:
    """Write the numbers of `codes` [..., D], before their scales, into the contiguous `out`. A dtype of 16 bits holds
    them exactly, too.
    """
    if codes.device.type == "cpu" and codes.shape[-1] % 2 == 0:
        look_up(e4m3_pairs(out.dtype), codes.view(torch.uint16), out)
    else:
        out.copy_(codes.view(torch.float8_e4m3fn))

"""NVFP4: numbers as E2M1, 16 of which share a scale in E4M3, beside one scale in float32.

A number is code · block scale · float32 scale. NVIDIA's recipe makes the float32 scale of a whole tensor, so that its
largest block scale is 448. A cache grows, so that its largest number is not known when the first is written: here the
float32 scale is of the keys, or of the values, of one slot, layer and head, and made from position 0, whose largest
number gets a block scale of about 448/HEADROOM. Block scales are of a position's own numbers, so what is cached of a
token depends on no token behind it. It depends on no other head either: GPUs that share a target have some heads each.

The float32 scale is a power of two, by which nothing is rounded: block scale · float32 scale is exact, and so are the
middles between two numbers that it makes, so that which code is nearest is a matter of comparisons alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.fp8 import LARGEST as LARGEST_SCALE
from specgate.backends.eagle3.lib.kv.fp8 import powers_above, unscaled
from specgate.backends.eagle3.lib.kv.lookup import look_up, nibble_pairs
from specgate.backends.eagle3.lib.kv.modes import NVFP4_ELEMENTS
from specgate.checkpoints.mxfp4 import VALUES

LARGEST: Final = 6.0
SMALLEST_SCALE: Final = 2.0**-9
"""The smallest number of E4M3 but 0: a block of zeros has it for its scale, and no scale is 0."""
HEADROOM: Final = 256.0
"""How many times as large as at position 0 a number may be. As far below that, scales are as precise as anywhere."""
LEAST_EXPONENT: Final = -112
"""Of the float32 scale: all middles are then above 2^-126, below which numbers may be zeros to a GPU."""
MIDDLES: Final = tuple((low + high) / 2 for low, high in pairwise(VALUES[:8]))
"""Where the nearest number changes. A tie goes to the even code, which is the lower one at every second of them."""


def outer_scales(largest: Tensor) -> Tensor:
    """The float32 scales of heads that have the absolute values `largest` ≥ 0, float32, at position 0: powers of two;
    1 where that is 0, or below 2^-126.
    """
    return powers_above(largest, HEADROOM / (LARGEST * LARGEST_SCALE), LEAST_EXPONENT)


def encoded(numbers: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(two numbers a byte [..., D/2], the first of them in the low half; block scales [..., D/16] as the bits of E4M3),
    both uint8, of `numbers` float32 [..., D]. `scale`: the float32 scale, a power of two, which broadcasts against
    [..., 1].
    """
    blocks = numbers.reshape(*numbers.shape[:-1], -1, NVFP4_ELEMENTS).contiguous()
    magnitude = blocks.abs()
    # A product: torch on a GPU makes one of a quotient by a number, too, and every machine is to round alike. Where the
    # quotient is a float32, the product is that.
    ideal = magnitude.amax(dim=-1) * (1 / LARGEST) / scale
    stored = ideal.clamp(SMALLEST_SCALE, LARGEST_SCALE).to(torch.float8_e4m3fn)
    step = (stored.float() * scale)[..., None]
    codes = torch.signbit(blocks).view(torch.uint8) << 3
    for index, middle in enumerate(MIDDLES):
        over = middle * step
        codes += ((magnitude >= over) if index % 2 else (magnitude > over)).view(torch.uint8)
    two = codes.flatten(-2).view(torch.int16)  # the first of them in the low byte, as everywhere that torch runs
    return (two | two >> 4).to(torch.uint8), stored.view(torch.uint8)


def decoded(codes: Tensor, blocks: Tensor, scale: Tensor) -> Tensor:
    """Return the numbers that `encoded` has made `codes` [..., D/2] and `blocks` [..., D/16] of, float32 [..., D]."""
    out = torch.empty(*codes.shape[:-1], 2 * codes.shape[-1], device=codes.device)
    decode_into(codes, blocks, scale, out)
    return out


def decode_into(codes: Tensor, blocks: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write what `decoded` returns into the contiguous `out` [..., D], rounded to its dtype."""
    look_up(nibble_pairs(VALUES, out.dtype, out.device), codes, out)
    scales = scales_of_blocks(blocks) * scale
    out.view(*scales.shape, NVFP4_ELEMENTS).mul_(scales[..., None])


def scales_of_blocks(blocks: Tensor) -> Tensor:
    """The numbers of block scales [..., n], float32."""
    out = torch.empty(blocks.shape, device=blocks.device)
    unscaled(blocks, out)
    return out

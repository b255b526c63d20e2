"""NVFP4: numbers as E2M1, 16 of which share a scale in E4M3, beside one scale in float32.

A number is code · block scale · float32 scale. NVIDIA's recipe makes the float32 scale of a whole tensor, so that its
largest block scale is 448. A cache grows, so that its largest number is not known when the first is written: here the
float32 scale is of the keys, or of the values, of one slot and layer, and made from position 0, whose largest number
gets a block scale of 448/HEADROOM. Block scales are of a position's own numbers, so what is cached of a token depends
on no token behind it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from specgate.eagle3.kv.fp8 import LARGEST as LARGEST_SCALE
from specgate.eagle3.kv.fp8 import unscaled
from specgate.eagle3.kv.lookup import look_up, nibble_pairs
from specgate.eagle3.kv.modes import NVFP4_ELEMENTS
from specgate.eagle3.mxfp4.format import VALUES

LARGEST: Final = 6.0
SMALLEST_SCALE: Final = 2.0**-9
"""The smallest number of E4M3 but 0: a block of zeros has it for its scale, and no scale is 0."""
HEADROOM: Final = 256.0
"""How many times as large as at position 0 a number may be. As far below that, scales are as precise as anywhere."""
MIDDLES: Final = tuple((low + high) / 2 for low, high in pairwise(VALUES[:8]))
"""Where the nearest number changes. A tie goes to the even code, which is the lower one at every second of them."""


def slot_scale(largest: Tensor) -> Tensor:
    """The float32 scale of a slot whose position 0 has the absolute value `largest` ≥ 0; 1 where that is 0."""
    scales = largest.float() * (HEADROOM / (LARGEST * LARGEST_SCALE))
    return torch.where(largest > 0, scales.clamp(min=2.0**-126), torch.ones_like(scales))


def encoded(numbers: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(two numbers a byte [..., D/2], the first of them in the low half; block scales [..., D/16] as the bits of E4M3),
    both uint8, of `numbers` float32 [..., D]. `scale`: the float32 scale, which broadcasts against [..., 1].
    """
    blocks = numbers.reshape(*numbers.shape[:-1], -1, NVFP4_ELEMENTS)
    wanted = blocks.abs().amax(dim=-1) / LARGEST / scale
    stored = wanted.clamp(SMALLEST_SCALE, LARGEST_SCALE).to(torch.float8_e4m3fn)
    size = (blocks / (stored.float() * scale)[..., None]).contiguous()
    codes = torch.signbit(size).view(torch.uint8) << 3
    magnitude = size.abs()
    for index, middle in enumerate(MIDDLES):
        codes += ((magnitude >= middle) if index % 2 else (magnitude > middle)).view(torch.uint8)
    two = codes.flatten(-2).view(torch.int16)  # the first of them in the low byte, as everywhere that torch runs
    return (two | two >> 4).to(torch.uint8), stored.view(torch.uint8)


def decoded(codes: Tensor, blocks: Tensor, scale: Tensor) -> Tensor:
    """What `encoded` has made `codes` [..., D/2] and `blocks` [..., D/16] of, float32 [..., D]."""
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

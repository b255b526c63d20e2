"""Keys and values of a prompt as codes in a cache's pages, and back, by torch: what kernels are compared with.

`kernels/include/nvfp4.cuh` says what it is. Codes here are one a byte, 0 … 15; block scales are the bits of E4M3.

Rows are [blocks, BLOCK, G, D], and of one slot those of its first block come first.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import MAGNITUDE, SIGN
from specgate.backends.eagle3.cupy.kernels.heads import OUTER_BYTES, SCALE_POSITIONS
from specgate.backends.eagle3.lib.kv import fp8, nvfp4
from specgate.backends.eagle3.lib.kv.modes import KvMode

LANES: Final = 32


def key_page(codes: Tensor) -> Tensor:
    """uint8 [..., D/16, 32, 16] of the keys' `codes` uint8 [..., BLOCK, D]."""
    # position 16a + 2i + b and element 64w + 16c + k: sixteen (w, i) of lane (a, b, c)
    parts = cut(cut(codes, -1, -1, 4, 16), -4, 4, 8, 2)
    return packed(parts.movedim((-3, -5), (-6, -5)).flatten(-6, -5).flatten(-4, -2))


def value_page(codes: Tensor) -> Tensor:
    """uint8 [..., D/16, 32, 16] of the values' `codes` uint8 [..., BLOCK, D]."""
    # position 16c + k and element 8n + g: sixteen n of lane (g, c)
    parts = cut(cut(codes, -1, -1, 8), -3, 4, 16)
    return packed(parts.movedim((-2, -1), (-4, -3)).flatten(-3, -2))


def key_codes(page: Tensor) -> Tensor:
    """The inverse of `key_page`."""
    parts = cut(cut(unpacked(page), -2, 4, 2, 4), -5, -1, 8)
    return parts.movedim((-6, -5), (-3, -5)).flatten(-3, -1).flatten(-4, -2)


def value_codes(page: Tensor) -> Tensor:
    """The inverse of `value_page`."""
    return cut(unpacked(page), -2, 8, 4).movedim((-4, -3), (-2, -1)).flatten(-4, -3).flatten(-2, -1)


def cut(tensor: Tensor, axis: int, *sizes: int) -> Tensor:
    """With several axes of `sizes`, one of which may be −1, in place of `axis`, which is counted from the last one."""
    behind = tensor.shape[axis + 1 :] if axis < -1 else ()
    return tensor.reshape(*tensor.shape[:axis], *sizes, *behind)


def packed(sixteens: Tensor) -> Tensor:
    """Pages of codes [..., D/8, 32, 16], those of each sixteen and lane."""
    numbers = cut(sixteens.int(), -1, 2, 4, 2)  # word, pair, half
    halves = torch.zeros_like(numbers[..., 0, :])
    for pair, (sign, magnitude) in enumerate(zip(SIGN, MAGNITUDE, strict=True)):
        halves |= (numbers[..., pair, :] >> 3) << sign | (numbers[..., pair, :] & 7) << magnitude
    two = cut(halves.to(torch.int16), -4, -1, 2).movedim(-4, -3)  # pair of sixteens, lane, which, word, half
    return two.flatten(-3, -1).contiguous().view(torch.uint8)


def unpacked(page: Tensor) -> Tensor:
    """The inverse of `packed`."""
    halves = cut(page.contiguous().view(torch.int16).int(), -1, 2, 2, 2).movedim(-3, -4).flatten(-5, -4)
    pairs = [
        (halves >> sign & 1) << 3 | halves >> magnitude & 7 for sign, magnitude in zip(SIGN, MAGNITUDE, strict=True)
    ]
    return torch.stack(pairs, dim=-2).flatten(-3, -1).to(torch.uint8)


def scale_page(keys: Tensor, values: Tensor, outer: Tensor) -> Tensor:
    """uint8 [..., 8·D + OUTER_BYTES] of the block scales of `keys` and of `values`, uint8 [..., BLOCK, D/16], and of
    the `outer` scales of both, float32 [..., 2].
    """
    own = cut(cut(keys, -1, -1, 4), -3, 4, 8, 2)  # a, i, b, w, c
    own = own.movedim((-2, -4), (-2, -1)).flatten(-2, -1).flatten(-4, -2)  # lane (a, b, c), sixteen (w, i)
    shared = cut(values, -2, 4, 16).movedim(-1, -2).flatten(-2, -1)  # c, (block of elements, position)
    shared = cut(shared, -1, 8, -1).transpose(-3, -2).flatten(-3, -2)
    both = cut(torch.cat((own, shared), dim=-1), -1, -1, 16).transpose(-3, -2).flatten(-3, -1)
    beside = torch.zeros(*both.shape[:-1], OUTER_BYTES, dtype=torch.uint8, device=both.device)
    beside[..., :8] = outer.contiguous().view(torch.uint8)
    return torch.cat((both, beside), dim=-1)


def block_scales(page: Tensor) -> tuple[Tensor, Tensor]:
    """The block scales of keys and of values in `page`, uint8 [..., BLOCK, D/16] each."""
    both = cut(page[..., :-OUTER_BYTES], -1, -1, LANES, 16).transpose(-3, -2).flatten(-2, -1)
    own, shared = both.chunk(2, dim=-1)
    own = cut(cut(own, -1, -1, 8), -3, 4, 2, 4)  # a, b, c, w, i
    keys = own.movedim((-5, -1, -4, -2, -3), (-5, -4, -3, -2, -1)).flatten(-2, -1).flatten(-4, -2)
    shared = cut(shared, -2, 8, 4).transpose(-3, -2).flatten(-2, -1)  # c, (block of elements, position)
    return keys, cut(shared, -1, -1, 16).transpose(-2, -1).flatten(-3, -2)


def outer_of(page: Tensor) -> Tensor:
    """The outer scales of keys and of values in `page`, float32 [..., 2]."""
    return page[..., -OUTER_BYTES : 8 - OUTER_BYTES].contiguous().view(torch.float32)


def blank(pages: Tensor) -> None:
    """Make scale pages [..., 8·D + OUTER_BYTES] those of zeros: the least block scales, outer scales of one."""
    pages.fill_(1)
    pages[..., -OUTER_BYTES:] = torch.ones(OUTER_BYTES // 4, device=pages.device).view(torch.uint8)


NO_NUMBER = 0x7F
"""NaN in E4M3: what a number that is not finite, or in NVFP4 its block's scale, becomes."""


def made_pages(kv: KvMode, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pages of keys, of values, and scales: of a text's `keys` and `values` from position 0 on, [blocks, …]."""
    if kv == "nvfp4":
        made = [nvfp4_blocks(rows) for rows in (keys, values)]
        codes = [by_head(codes) for codes, _, _ in made]
        outer = torch.stack([scale for _, _, scale in made], dim=-1).expand(len(keys), -1, -1)
        scales = scale_page(by_head(made[0][1]), by_head(made[1][1]), outer)
        return key_page(codes[0]), value_page(codes[1]), scales
    of_keys, of_values = fp8_codes(keys), fp8_codes(values)
    scales = torch.stack((of_keys[1].transpose(1, 2), of_values[1].transpose(1, 2)), dim=-1)
    return by_head(of_keys[0]), of_values[0].permute(0, 2, 3, 1), scales


def held(kv: KvMode, k_pages: Tensor, v_pages: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the pages of one slot's blocks, in order, hold: keys and values float32 [blocks, BLOCK, G, D]."""
    if kv == "nvfp4":
        codes = key_codes(k_pages), value_codes(v_pages)
        outer = outer_of(scales[0])  # [G, 2]
        keys, values = (
            nvfp4.decoded(halves(code), blocks, outer[:, None, i, None])
            for i, (code, blocks) in enumerate(zip(codes, block_scales(scales), strict=True))
        )
        return by_head(keys), by_head(values)
    of_rows = scales.repeat_interleave(SCALE_POSITIONS, dim=2).transpose(1, 2)[..., None, :]
    keys, values = by_head(k_pages), v_pages.permute(0, 3, 1, 2)
    return fp8.decoded(keys, of_rows[..., 0]), fp8.decoded(values, of_rows[..., 1])


def by_head(rows: Tensor) -> Tensor:
    """[blocks, BLOCK, G, D] ↔ [blocks, G, BLOCK, D]."""
    return rows.transpose(1, 2)


def fp8_codes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`rows` as E4M3: (codes uint8 of that shape, scales [blocks, BLOCK / SCALE_POSITIONS, G])."""
    numbers = rows.float()
    scales = fp8.scales_of(finite(numbers[:, ::SCALE_POSITIONS].abs().amax(dim=-1)))
    of_rows = scales.repeat_interleave(SCALE_POSITIONS, dim=1)[..., None]
    return fp8.encoded(torch.where(numbers.isfinite(), numbers, torch.nan), of_rows), scales


def nvfp4_blocks(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`rows` as NVFP4: (codes uint8 of that shape, block scales [blocks, BLOCK, G, D/16], outer scales [G])."""
    numbers = rows.float()
    outer = nvfp4.outer_scales(finite(numbers[0, 0].abs().amax(dim=-1)))
    two, scales = nvfp4.encoded(numbers, outer[:, None])
    wrong = ~numbers.isfinite().view(*scales.shape, -1).all(dim=-1)
    codes = torch.stack((two & 15, two >> 4), dim=-1).flatten(-2)
    return codes, scales.masked_fill(wrong, NO_NUMBER), outer


def halves(codes: Tensor) -> Tensor:
    """Codes one a byte, [..., D], as two a byte, [..., D/2], the first of them in the lower half."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def finite(largest: Tensor) -> Tensor:
    return torch.where(largest.isfinite(), largest, 0.0)

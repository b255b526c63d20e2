"""Keys and values of a prompt as codes in a cache's pages, and back, by torch: what kernels are compared with, and what
a prefill does where no kernel runs.

Rows are [blocks, BLOCK, G, D], and of one slot those of its first block come first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import SCALE_POSITIONS
from specgate.backends.eagle3.cupy.memory import nvfp4_pages
from specgate.backends.eagle3.lib.kv import fp8, nvfp4
from specgate.backends.eagle3.lib.kv.modes import KvMode

NO_NUMBER = 0x7F
"""NaN in E4M3: what a number that is not finite, or in NVFP4 its block's scale, becomes."""


def made_pages(kv: KvMode, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(keys' pages, values' pages, scales) of a text's `keys` and `values` from position 0 on, [blocks, …] each as
    `Heads` has them.
    """
    if kv == "nvfp4":
        made = [nvfp4_blocks(rows) for rows in (keys, values)]
        codes = [by_head(codes) for codes, _, _ in made]
        outer = torch.stack([scale for _, _, scale in made], dim=-1).expand(len(keys), -1, -1)
        scales = nvfp4_pages.scale_page(by_head(made[0][1]), by_head(made[1][1]), outer)
        return nvfp4_pages.key_page(codes[0]), nvfp4_pages.value_page(codes[1]), scales
    of_keys, of_values = fp8_codes(keys), fp8_codes(values)
    scales = torch.stack((of_keys[1].transpose(1, 2), of_values[1].transpose(1, 2)), dim=-1)
    return by_head(of_keys[0]), of_values[0].permute(0, 2, 3, 1), scales


def held(kv: KvMode, k_pages: Tensor, v_pages: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return the contents of the pages of one slot's blocks, in order: keys and values float32 [blocks, BLOCK,
    G, D].
    """
    if kv == "nvfp4":
        codes = nvfp4_pages.key_codes(k_pages), nvfp4_pages.value_codes(v_pages)
        outer = nvfp4_pages.outer_of(scales[0])  # [G, 2]
        keys, values = (
            nvfp4.decoded(halves(code), blocks, outer[:, None, i, None])
            for i, (code, blocks) in enumerate(zip(codes, nvfp4_pages.block_scales(scales), strict=True))
        )
        return by_head(keys), by_head(values)
    of_rows = scales.repeat_interleave(SCALE_POSITIONS, dim=2).transpose(1, 2)[..., None, :]
    keys, values = by_head(k_pages), v_pages.permute(0, 3, 1, 2)
    return fp8.decoded(keys, of_rows[..., 0]), fp8.decoded(values, of_rows[..., 1])


def held_value(kv: KvMode, scales: Tensor, position: int, values: Tensor) -> Tensor:
    """Return the cached form of `values` float32 [G, D] at `position`. `scales`: of its blocks, in order."""
    if kv == "nvfp4":
        outer = nvfp4_pages.outer_of(scales[0])[:, 1, None]
        return nvfp4.decoded(*nvfp4.encoded(values, outer), outer)
    block, place = divmod(position // SCALE_POSITIONS, scales.shape[2])
    scale = scales[block, :, place, 1, None]
    return fp8.decoded(fp8.encoded(values, scale), scale)


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

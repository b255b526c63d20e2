"""Matrices of experts in MXFP4 in the order in which `expert_ring.cuh` reads them, and as numbers again.

A matrix is cut into tiles of 16 rows, and a tile into slabs of 64 columns: what one warp multiplies at a time. A tile
has the numbers of all its slabs, then their scales, and ends with its last line of the L2 cache. Nothing is rounded:
both ways lead through the same four bits and the same scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.checkpoints.mxfp4 import BIAS, BLOCK, BYTES, VALUES

TILE: Final = 16
"""Rows of a tile."""
NUMBERS: Final = 512
SCALES: Final = 2 * TILE
"""Bytes of the numbers and of the scales of a slab."""
LINE: Final = 128
"""Bytes of a line of the L2 cache: a slab's numbers begin with one."""
SIGN: Final = (15, 12, 14, 13)
MAGNITUDE: Final = (9, 6, 3, 0)
"""Of a half word that holds four numbers: the bit of each number's sign, and the lowest bit of its magnitude."""
SHIFT: Final = 14
"""What is added to a scale: the kernel's numbers are smaller by this power of two."""
AT_ONCE: Final = 4
"""Experts that are packed by the same operations: beside one of gpt-oss' these take longer to launch than to run."""
LARGEST_SCALE: Final = 254 - SHIFT
"""The largest scale byte that a float32 exponent holds after that: 2¹¹³."""
LEAST_TOP: Final = 30
"""What a matrix's largest scale counts as at least, 2⁻¹¹¹: scales beside it then have a unit that is a float32."""


class Order(IntEnum):
    """Rows of a matrix that a tile has as its rows 0 … 7 and 8 … 15."""

    PLAIN = 0
    """Neighbours."""
    PAIRED = 1
    """Even rows, which are gate rows, and the odd rows after them, which are up rows."""


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """One matrix [N, K] per expert: `weight` uint8 [E, N / 16, tile_bytes(K)], and `bias` bfloat16 [E, N], in the order
    of the checkpoint. `top_scale` int32 [E]: the largest scale of each matrix, as its tiles have it, or LEAST_TOP.
    """

    weight: Tensor
    bias: Tensor
    top_scale: Tensor
    columns: int
    order: Order

    @classmethod
    def of(cls, blocks: Tensor, scales: Tensor, bias: Tensor, order: Order) -> PackedExperts:
        """From `blocks` uint8 [E, N, K / 32, 16] and `scales` uint8 [E, N, K / 32] of a checkpoint.

        Raises ValueError for a scale above LARGEST_SCALE.
        """
        experts, rows, count, _ = blocks.shape
        tiles = blocks.new_empty(experts, rows // TILE, tile_bytes(count * BLOCK))
        top = scales.flatten(1).amax(1).int()
        if blocks.device.type != "meta":
            check_scale(int(top.max()))
            for some in zip(*(torch.split(t, AT_ONCE) for t in (tiles, blocks, scales)), strict=True):
                out, numbers, exponents = (tensor.flatten(0, 1) for tensor in some)
                out.copy_(packed(numbers, exponents, order))
        return cls(tiles, bias.contiguous(), (top + SHIFT).clamp(min=LEAST_TOP), count * BLOCK, order)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that launches name."""
        return {"PAIRED_ROWS": int(self.order)}

    @property
    def read_bytes(self) -> int:
        """Bytes of one expert that a product reads: numbers and scales, without what fills lines up, and the bias."""
        return self.weight.shape[1] * slab_count(self.columns) * (NUMBERS + SCALES) + self.bias[0].nbytes

    def matrix(self, expert: int) -> Tensor:
        """The matrix of one expert as it is in the checkpoint, bfloat16 [N, K]."""
        return unpacked(self.weight[expert], self.columns, self.order)


def check_scale(largest: int) -> None:
    if largest > LARGEST_SCALE:
        raise ValueError(f"a scale of 2^{largest - BIAS}: at most 2^{LARGEST_SCALE - BIAS} is supported")


def packed(blocks: Tensor, scales: Tensor, order: Order) -> Tensor:
    """uint8 [N / 16, tile_bytes(K)] of `blocks` uint8 [N, K / 32, 16] and `scales` uint8 [N, K / 32].

    A column of 32 that is missing at the end is filled with zeros.
    """
    rows, count, _ = blocks.shape
    blocks, shifted = F.pad(blocks, (0, 0, 0, count % 2)), F.pad(scales + SHIFT, (0, count % 2))
    numbers = torch.stack((blocks & 15, blocks >> 4), dim=-1).int().view(rows, -1, 4, 4, 2)  # lane, pair, half
    halves = torch.zeros_like(numbers[:, :, :, 0])
    for pair, (sign, magnitude) in enumerate(zip(SIGN, MAGNITUDE, strict=True)):
        of_pair = numbers[:, :, :, pair]
        halves |= (of_pair >> 3) << sign | (of_pair & 7) << magnitude
    words = in_tiles(
        halves.to(torch.int16).view(rows, -1, 2, 4, 2), order
    )  # tile, half, g, slab, block, lane, half word
    lanes = words.permute(0, 3, 2, 5, 4, 1, 6).contiguous().view(rows // TILE, -1)
    beside = in_tiles(shifted.view(rows, -1, 2), order)  # tile, half, g, slab, block
    tiles = torch.cat((lanes.view(torch.uint8), beside.permute(0, 3, 2, 4, 1).flatten(1)), dim=-1)
    return F.pad(tiles, (0, tile_bytes(count * BLOCK) - tiles.shape[-1]))


def in_tiles(rows: Tensor, order: Order) -> Tensor:
    """[N, …] → [N / 16, 2, 8, …]: rows 0 … 7 and 8 … 15 of every tile."""
    if order is Order.PAIRED:
        return rows.reshape(-1, 8, 2, *rows.shape[1:]).transpose(1, 2)
    return rows.reshape(-1, 2, 8, *rows.shape[1:])


def unpacked(tiles: Tensor, columns: int, order: Order) -> Tensor:
    """bfloat16 [N, `columns`] of `tiles` uint8 [N / 16, tile_bytes(`columns`)]: the inverse of `packed`, decoded."""
    rows, count = len(tiles), slab_count(columns)
    numbers, scales, _ = tiles.tensor_split((count * NUMBERS, count * (NUMBERS + SCALES)), dim=-1)
    halves = numbers.contiguous().view(torch.int16).view(rows, count, 8, 4, 2, 2, 2)
    fours = table(tiles.device)[halves.int() & 0xFFFF].view(torch.bfloat16).view(*halves.shape, 4)
    exponents = scales.reshape(rows, count, 8, 2, 2).int() - (BIAS + SHIFT)
    factors = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents).bfloat16()
    # tile, slab, g, lane, block, half of the tile, half word, pair
    scaled = fours * factors.view(rows, count, 8, 1, 2, 2, 1, 1)
    of_rows = (0, 2, 5) if order is Order.PAIRED else (0, 5, 2)
    return scaled.permute(*of_rows, 1, 4, 3, 7, 6).reshape(rows * TILE, count * 2 * BLOCK)[:, :columns]


@cache
def table(device: torch.device) -> Tensor:
    """The four numbers of every half word, as four bfloat16 in an int64: [65536]."""
    words = torch.arange(1 << 16)
    numbers = torch.stack(
        [(words >> s & 1) << 3 | words >> m & 7 for s, m in zip(SIGN, MAGNITUDE, strict=True)], dim=-1
    )
    values = torch.tensor(VALUES, dtype=torch.bfloat16)[numbers]
    return values.view(torch.int64).squeeze(-1).to(device)


def slab_count(columns: int) -> int:
    """Slabs of a row of `columns` numbers."""
    return -(-columns // (4 * BYTES))


def tile_bytes(columns: int) -> int:
    """Bytes of a tile of rows of `columns` numbers: whole lines."""
    return -(-slab_count(columns) * (NUMBERS + SCALES) // LINE) * LINE

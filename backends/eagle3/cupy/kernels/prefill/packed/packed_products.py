"""How the products of experts for few rows divide their work, and the parties that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.experts.packing import LINE, NUMBERS, SCALES, TILE, slab_count

WARPS: Final = 12
"""Three for each quarter of an SM, with 168 registers of a thread."""
PARTY: Final = 48
"""Most rows of a party: a piece of 16 bytes of each slab of x for each thread."""
RECORD: Final = 4 + PARTY
"""Words of a party: its expert, its first pair, how many it has, an unused one, and the rows of its pairs."""
RECORD_BYTES: Final = -(-3 * RECORD * 4 // LINE) * LINE
"""Of three parties in shared memory, in whole lines."""
STAGES: Final = 6
"""Most slabs in shared memory. Five on their way are 98 KB of weights. By Little's law 4.6 TB/s over 132 SMs need 35
KB of each SM at a latency of 1 us.
"""
WEIGHT_TILES: Final = (3, 2, 1)
"""Tiles of a warp, the first that divides a matrix: rows of x are loaded from shared memory once for all of them."""
LEAST_STAGES: Final = 4
"""A GPU that has no shared memory for so many, of three tiles, has two tiles at most."""


@dataclass(frozen=True, slots=True)
class Parties:
    """Pairs of rows and experts, sorted by their expert and cut into parties: `parties` int32 [most, RECORD], of which
    there are `party_count` int32 [1]. A party has at most PARTY pairs of one expert.
    """

    parties: Tensor
    party_count: Tensor

    @classmethod
    def room(cls, pairs: int, experts: int, device: torch.device) -> Parties:
        count = torch.empty(1, dtype=torch.int32, device=device)
        return cls(count.new_empty(most_parties(pairs, experts), RECORD), count)


def most_parties(pairs: int, experts: int) -> int:
    """Into which so many pairs can fall: whole ones, and one that is not whole of each expert."""
    return min(pairs, experts) + pairs // PARTY


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """The product with a matrix of `tiles` tiles of 16 rows, of `columns` columns."""

    tiles: int
    columns: int

    @property
    def weight_tiles(self) -> int:
        """Tiles of a warp at a time."""
        fits = shared_memory_limit() >= RECORD_BYTES + LEAST_STAGES * stage_bytes(WEIGHT_TILES[0])
        return next(n for n in WEIGHT_TILES if self.tiles % n == 0 and (fits or n < WEIGHT_TILES[0]))

    @property
    def stages(self) -> int:
        fit = (shared_memory_limit() - RECORD_BYTES) // stage_bytes(self.weight_tiles)
        return min(STAGES, fit, slab_count(self.columns) + 1)

    @property
    def shared_bytes(self) -> int:
        return RECORD_BYTES + self.stages * stage_bytes(self.weight_tiles)

    @property
    def threads(self) -> int:
        return 32 * WARPS

    def blocks(self, parties: int) -> int:
        """Blocks of a launch for at most so many parties: one for each SM, and no more than there are items."""
        return min(expert_config.processors(), parties * -(-self.tiles // (WARPS * self.weight_tiles)))

    def constants(self) -> dict[str, int]:
        """What the kernels are compiled with."""
        return {
            "k_in": self.columns,
            "tiles": self.tiles,
            "weight_tiles": self.weight_tiles,
            "stages": self.stages,
            "party": PARTY,
            "threads": self.threads,
        }


def stage_bytes(weight_tiles: int) -> int:
    """Of a slab of x, and of the weights of all warps."""
    return PARTY * LINE + WARPS * weight_tiles * (NUMBERS + SCALES)


def product_of(rows: int, columns: int) -> PackedProduct:
    return PackedProduct(rows // TILE, columns)

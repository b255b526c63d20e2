"""Division of the work of the experts' two products is divided among blocks and warps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from specgate.backends.eagle3.cupy.device import multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.experts.packing import NUMBERS, SCALES, slab_count
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_TILE
from specgate.checkpoints.geometry import ExpertGeometry

WARPS: Final = (5, 4, 6, 7, 8, 9)
"""Warps that a block may have, the first among equals preferred."""
PROCESSORS: Final = 132
"""SMs that launches are made for on a machine without a GPU, where nothing is launched: those of an H200."""
MOST_EXPERTS: Final = 256
MOST_PLACES: Final = 8
"""Most experts of a layer, and most that a token may choose."""
MOST_ROWS: Final = 64
"""Most rows of a step: every block keeps in shared memory where all of them go."""
SUM_BYTES: Final = 512
"""Bytes of one warp's sums of a tile: 16 rows of weight, 8 rows of x, float32."""
MOST_RING: Final = 4
"""Most slabs of a turn. On an H200, of 1, 3, 5 and 9 slabs three were fastest, or as fast, at 1, 4 and 8 rows."""
MOST_SLABS: Final = 16
"""Most slabs of a turn that the kernel can have: one copy of a warp brings all their scales."""
TILES: Final = (1, 2, 3, 4)
ROOMS: Final = (1, 2, 3, 4)
"""Tiles of a block at a time, and blocks of an SM, that a configuration may have."""
ROUTING_BYTES: Final = 13 * 1024
"""Most bytes of shared memory that a block declares itself: twelve for each pair, each row group and each expert."""


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """`warps` warps of a block split k, which is part of the arithmetic: it decides the order in which a row is summed.
    It must therefore be the same for a weight at every number of rows.

    The other fields only move work. A block multiplies with `tiles` tiles of 16 rows of weight at a time. Each warp has
    `ring` slabs of each of them on their way. By Little's law 4.55 TB/s over 132 SMs need 34 KB per SM at a latency of
    1 us. `blocks_per_sm` blocks are launched per SM. Each takes registers such that an SM has them for `room` blocks:
    the kernel after this one may then begin beside it.
    """

    warps: int
    columns: int
    ring: int
    tiles: int = 1
    blocks_per_sm: int = 3
    room: int = 3

    @classmethod
    def from_stored(cls, stored: Mapping[str, int], columns: int) -> ExpertConfig:
        """The inverse of `stored`, for matrices of `columns` columns. Raises TypeError for other names."""
        return cls(columns=columns, **stored)

    def stored(self) -> dict[str, int]:
        """Name → value, as files of tuned configurations have it: all but the columns, which the weight has."""
        return {name: value for name, value in asdict(self).items() if name != "columns"}

    @property
    def split(self) -> tuple[int, ...]:
        """Return the split of k. The bits of a row depend on this alone."""
        return (self.warps,)

    @property
    def each(self) -> int:
        """Slabs of a row of weight that a warp has."""
        return -(-slab_count(self.columns) // self.warps)

    def possible(self, tiles_of_expert: int) -> bool:
        """Return whether the kernels can work on matrices of so many tiles like this; the GPU's limits do not count."""
        splits = self.warps in WARPS and 0 < self.ring <= MOST_SLABS and self.each % self.ring == 0
        moves = self.tiles in TILES and tiles_of_expert % self.tiles == 0
        return splits and moves and self.room in ROOMS and self.blocks_per_sm in ROOMS

    @classmethod
    def usual(cls, columns: int, tiles_of_expert: int, tiles: int) -> ExpertConfig:
        """For matrices of so many columns and tiles, of which a block takes `tiles` at a time where they divide."""
        slabs = slab_count(columns)
        warps = min(WARPS, key=lambda count: -(-slabs // count) * count)
        each = -(-slabs // warps)
        ring = max(count for count in range(1, min(each, MOST_RING) + 1) if each % count == 0)
        return cls(warps, columns, ring, tiles if tiles_of_expert % tiles == 0 else 1)

    def fitted(self) -> ExpertConfig:
        """The same arithmetic within this GPU's shared memory. Raises ValueError if one tile is too much for it."""
        limit = shared_memory_limit() - ROUTING_BYTES
        fitting = self if self.shared_bytes <= limit else replace(self, tiles=1)
        if fitting.shared_bytes > limit:
            raise ValueError(f"{fitting}: {fitting.shared_bytes} bytes of shared memory exceed {limit}")
        return fitting

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a block: each warp has a turn's slabs, two turns' scales and two sums."""
        return self.warps * self.tiles * (self.ring * (NUMBERS + 2 * SCALES) + 2 * SUM_BYTES)

    @property
    def blocks(self) -> int:
        """Blocks of a launch."""
        return self.blocks_per_sm * processors()


def processors() -> int:
    """SMs that a launch is made for."""
    gpu = multiprocessors()
    return gpu.count if gpu else PROCESSORS


def check_experts(experts: ExpertGeometry, rows: int) -> None:
    """Raise ValueError for a mixture, or a number of rows, that no kernel is made for."""
    if not 0 < rows <= MOST_ROWS:
        raise ValueError(f"rows = {rows}: 1 to {MOST_ROWS} rows can be sent to experts")
    if not 0 < experts.count <= MOST_EXPERTS:
        raise ValueError(f"{experts.count} experts: 1 to {MOST_EXPERTS} are supported")
    if not 0 < experts.per_token <= min(MOST_PLACES, experts.count):
        raise ValueError(
            f"{experts.per_token} experts of a token: 1 to {min(MOST_PLACES, experts.count)} are supported"
        )


def constants_of(experts: ExpertGeometry, config: ExpertConfig, rows: int) -> dict[str, int | float]:
    """Return the constants of both products beside the sizes of their weight, for up to `rows` rows. Routing has places
    for the rows of one row group, or for as many rows as there may be.
    """
    return {
        "experts": experts.count,
        "per_token": experts.per_token,
        "rows": ROW_TILE if rows <= ROW_TILE else MOST_ROWS,
        "warps": config.warps,
        "weight_tiles": config.tiles,
        "ring_slabs": config.ring,
        "blocks_per_sm": config.room,
    }

"""Division of the work of `matmul_many.cu` on a weight is divided among blocks and clusters of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, Multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import (
    DECLARED,
    MANY_ROWS,
    ROW_GROUP,
    ROW_TILE,
    SHARED_UNIT,
    TILE_BYTES,
    GemmConfig,
    is_small,
)

TILES: Final = 8
"""Most tiles of 16 rows of weight that a block multiplies: it has warps for so many."""
HELD: Final = 4
"""Most chains of sums that a thread has registers for."""
CLUSTERS: Final = (2, 4, 8)
"""Blocks that may share the chains of the same outputs, where there is not one for each. The fewest that fill the SMs
are taken; beyond 32 rows, where a block has registers for few sums, one for each chain if there are eight: for the down
projection of 8B size that took 55 us for 74 at 64 rows on an H200, and 47 for 62 at 48.
"""
FEWER: Final[Mapping[int, int]] = {1: 7, 4: 6}
"""Blocks of a cluster → tiles of a block, with up to 32 rows, where fewer than the most fill SMs better. On an H200 it
was 2 % for the gates and ups of 8B size, which need no cluster, 12 % for the output projection, 3 % for down.
"""
RESIDENT: Final = 1.45
"""Blocks of clusters per SM that were all at work at once on an H200: 192. Of 256 some waited for others to end, since
a cluster's blocks need places near each other.
"""
DEEPEST: Final = (5, 4)
"""Most stages, of a block of a cluster with up to 32 rows, and of others: one more was slower on an H200 for every
weight but one, where it was as fast."""
HALF: Final = 4
"""Most tiles of rows of a block of which two shall fit an SM at once; beyond, one of twice the threads does."""
WORTH: Final = 20 << 20
"""Elements of a weight from which more than 32 rows are worth dividing so: with the 16 · 2²⁰ of an output projection of
8B size, `matmul_rows.cu` was 8 % faster at 64 rows on an H200."""
CLUSTERED: Final = (9, 0)
"""The lowest compute capability whose blocks can read each other's shared memory."""


@dataclass(frozen=True, slots=True)
class ManyConfig:
    """`row_groups` groups of blocks, for `row_tiles` tiles of eight rows each; clusters of `cluster` blocks; rings of
    `stages` stages; `warp_tiles` of a block's `tiles` tiles of weight for each warp. With one a block has twice the
    warps, which hides more of what they wait for, but each thread half the registers: too few for the sums of a
    cluster's chains.
    """

    row_tiles: int
    row_groups: int
    cluster: int
    stages: int
    warp_tiles: int = 2
    tiles: int = TILES

    @classmethod
    def of(
        cls, config: GemmConfig, weight: tuple[int, int], rows: int, room: int, gpu: Multiprocessors | None
    ) -> ManyConfig | None:
        """For `rows` rows and a weight [N, K] whose k is split as `config` says; None where `matmul_rows.cu` does it.

        `room`: bytes of shared memory that a block may have. Without a `gpu`, one block is taken to fill it.
        """
        n, k = weight
        clusters = gpu is not None and gpu.capability >= CLUSTERED
        slices = k // (32 * config.k_chunks)
        if rows <= MANY_ROWS or is_small(n, k) or k % (32 * config.k_chunks) or slices < config.warps:
            return None
        row_groups = -(-rows // ROW_GROUP)
        row_tiles = -(-rows // (row_groups * ROW_TILE))
        in_halves = row_tiles <= HALF
        if not in_halves and n * k < WORTH:
            return None
        blocks = -(-n // (16 * TILES)) * row_groups * (1 if in_halves else 2)
        share = room if gpu is None else min(room, gpu.shared_memory // (1 + in_halves) - RESERVED_SHARED)
        stages = min(DEEPEST[not in_halves], (share - DECLARED) // stage_bytes(config, row_tiles))
        if stages < 2:
            return None
        alone = min(stages, DEEPEST[1])
        # Half the registers are too few where a last block has fewer rows of weight, too.
        warp_tiles = 1 if in_halves and n % (16 * TILES) == 0 else 2
        single = cls(row_tiles, row_groups, 1, alone, warp_tiles)
        chain_each = not in_halves and config.warps == max(CLUSTERS)
        sizes = (config.warps,) if chain_each else CLUSTERS
        clustered = (cls(row_tiles, row_groups, cluster, stages) for cluster in sizes)
        if in_halves and clusters and gpu is not None:
            single = single.evener(n, gpu)
            clustered = (way.evener(n, gpu) for way in clustered)
        possible = [
            made
            for made in (single, *clustered)
            if made.splits(config) and (clusters or made.cluster == 1) and made.sum_bytes(config) <= share - DECLARED
        ]
        enough = 0 if gpu is None else gpu.count * 9 // 10
        return next((made for made in possible if blocks * made.cluster >= enough), possible[-1] if possible else None)

    def evener(self, n: int, gpu: Multiprocessors) -> ManyConfig:
        """The same with fewer tiles for each block, where a weight of `n` rows then keeps the SMs of `gpu` busy more
        alike: the busiest one has less to do, or all blocks of clusters run at once.
        """
        if self.cluster not in FEWER:
            return self
        fewer = replace(self, tiles=FEWER[self.cluster])
        if self.cluster == 1:
            is_evener = n % (16 * fewer.tiles) == 0 and fewer.most_tiles(n, gpu) < self.most_tiles(n, gpu)
        else:
            is_evener = fewer.grid(n)[0] <= RESIDENT * gpu.count
        return fewer if is_evener else self

    def most_tiles(self, n: int, gpu: Multiprocessors) -> int:
        """Tiles of weight that the busiest SM multiplies, where none waits for another."""
        return -(-self.grid(n)[0] // gpu.count) * self.tiles

    def splits(self, config: GemmConfig) -> bool:
        """Return whether the blocks of a cluster can share the chains of `config` among them."""
        return self.cluster == 1 or (config.warps % self.cluster == 0 and config.warps // self.cluster <= HELD)

    def grid(self, n: int) -> tuple[int, ...]:
        """Blocks for a weight of `n` rows: those of a cluster beside each other, then those of the groups of rows."""
        return (-(-n // (16 * self.tiles)) * self.row_groups * self.cluster,)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * (-(-self.tiles // self.warp_tiles // 4) * 4) * (1 if self.row_tiles <= HALF else 2)

    @property
    def constants(self) -> dict[str, int]:
        """Return the constants that say how the work is divided."""
        own = asdict(self)
        return {"weight_tiles": own.pop("tiles"), **own}

    def sum_bytes(self, config: GemmConfig) -> int:
        """Bytes of the sums that a block leaves for its cluster, in the place of its ring."""
        stored = 1 if self.cluster == 1 else config.warps // self.cluster
        return stored * self.row_tiles * self.tiles * TILE_BYTES

    def shared_bytes(self, config: GemmConfig) -> int:
        """Bytes of dynamic shared memory that a block needs."""
        needed = max(self.stages * stage_bytes(config, self.row_tiles, self.tiles), self.sum_bytes(config))
        return -(-needed // SHARED_UNIT) * SHARED_UNIT


def stage_bytes(config: GemmConfig, row_tiles: int, tiles: int = TILES) -> int:
    """Bytes of a piece of k of all rows of weight and of x: 64 k, or 32 where a slice has no more."""
    return (16 * tiles + ROW_TILE * row_tiles) * 64 * min(2, config.k_chunks)

"""Division of the work of `matmul_rows.cu` on a weight is divided among blocks, warps and passes.

What a search tries is in `tuning/gemm_weight.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, shared_memory_limit

MAX_ROWS: Final = 256
ROW_GROUP: Final = 64
"""Most rows that a block multiplies: more have no room in registers, and are shared among several blocks."""
SMALL: Final = 8 * 2**20
"""Bytes of weight below which a product mostly waits: it gains from an early start, wherever that is, and from fewer
trips to memory. From there on, blocks are spread evenly over all SMs.
"""
WARPS: Final = (4, 8, 16)
K_CHUNKS: Final = (1, 2, 4)
STAGES: Final = (1, 2, 3, 4, 6)
SHALLOW: Final = 4
"""Most stages of a block that makes one pass, where it is tried alone or with more rows than it was found for."""
TILES: Final = (1, 2, 3, 4)
ROW_TILE: Final = 8
"""Rows of x that a tensor core takes at a time."""
STAGE_BYTES: Final = 1024
"""Bytes of one chunk of a tile in one stage: 16 rows of weight, 32 columns of k, bfloat16."""
SHARED_UNIT: Final = 128
"""Bytes in which shared memory is given out."""
TILE_BYTES: Final = 512
"""Bytes of one warp's sums of a tile: 16 features, 8 rows, float32."""
SUMMED: Final = 4
"""Most tiles whose sums are added up over the warps at a time."""
MANY_ROWS: Final = 16
"""Beyond so many rows one tile of weight is usually best: more tiles take too many registers."""
REGISTERS_FOR_X: Final = 92
"""Of a thread's 128 registers, those that may hold x, sums, and what these are multiplied with."""
DECLARED: Final = 2 * 4 * ROW_GROUP
"""Most bytes that a block declares beside its ring: per row the factor of its norm, and what a choice must beat."""
STORED_NAMES: Final[Mapping[str, str]] = {"k_chunks": "span", "delay_dependents": "held"}
"""Field of `GemmConfig` → its name in stored files, where the two differ."""


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """Division of the work on one weight.

    `warps` and `k_chunks` are part of the arithmetic: they decide the order in which a row is summed. The same two must
    therefore serve a weight at every number of rows. The other fields only move work, and may differ with the rows.

    `warps` warps split k; each takes `k_chunks` 32-wide chunks of it at a time. A block multiplies with `tiles` tiles
    of 16 rows of weight, which stream through `stages` stages of shared memory. It makes `passes` passes, with other
    rows of weight in each. With `delay_dependents` = 1 the next kernel may start only once this one has asked for its
    last weights; with 0 it may start at once.
    """

    warps: int = 16
    k_chunks: int = 2
    stages: int = 3
    tiles: int = 1
    passes: int = 1
    delay_dependents: int = 0

    @classmethod
    def from_stored(cls, stored: Mapping[str, int]) -> GemmConfig:
        """The inverse of `stored`. Raises KeyError for a missing name."""
        return cls(**{field.name: stored[STORED_NAMES.get(field.name, field.name)] for field in fields(cls)})

    def stored(self) -> dict[str, int]:
        """Name → value, by the names that stored files use."""
        return {STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}

    @property
    def constants(self) -> dict[str, int]:
        """Return the constants that say how the work is divided."""
        own = asdict(self)
        return {"chunks_per_turn": own.pop("k_chunks"), "weight_tiles": own.pop("tiles"), **own}

    @property
    def split(self) -> tuple[int, int]:
        """Return the split of k. The bits of a row depend on this alone."""
        return self.warps, self.k_chunks

    def possible(self, n_out: int, k_in: int) -> bool:
        """Return whether the kernel can work on a weight [n_out, k_in] like this; the GPU's limits do not count."""
        splits = self.warps in WARPS and self.k_chunks in K_CHUNKS and self.warps * self.k_chunks <= most_chunks(k_in)
        moves = self.stages in STAGES and self.tiles in TILES and self.delay_dependents in (0, 1)
        groups = -(-n_out // (16 * self.tiles)) if moves else 0
        return (splits or self.split == GemmConfig().split) and moves and 1 <= self.passes <= groups

    def x_in_registers(self, n_out: int, k_in: int, row_tiles: int) -> bool:
        """Return whether a thread loads all its share of x at once and keeps it in registers, for `row_tiles` tiles of
        rows.

        It does where the registers have room, if x is needed in several passes, or if the weight is small: each turn
        over a small weight would else wait for its x.
        """
        each = turns(k_in, *self.split)
        x, sums = 4 * each * self.k_chunks * row_tiles, 4 * self.tiles * row_tiles
        weights = 12 * self.tiles  # with their addresses
        serves = self.passes > 1 or (each > 1 and is_small(n_out, k_in))
        return serves and x + sums + weights <= REGISTERS_FOR_X

    def at(self, rows: int) -> GemmConfig:
        """For `rows` rows, where it was found for a few: what is usually best with the registers that a thread has."""
        if rows <= ROW_TILE:
            return self
        once = replace(self, stages=min(self.stages, SHALLOW), passes=1)
        if rows <= MANY_ROWS:
            # Every block reads 16 rows of x: half as many blocks read half as much of them.
            return replace(once, tiles=2)
        of_two = shared_memory_limit() // (2 * self.warps * self.k_chunks * STAGE_BYTES)  # blocks that share an SM
        return replace(once, tiles=1, stages=min(once.stages, max(2, of_two)))

    def fitted(self, k_in: int, shared_memory: int) -> GemmConfig:
        """The same arithmetic within `shared_memory` bytes per block, and no stage without work.

        In one pass, where the sums have no room beside the ring. Raises ValueError where even the smallest ring is too
        large.
        """
        all_turns, one = turns(k_in, *self.split) * self.passes, self.warps * self.k_chunks * STAGE_BYTES
        room, least = self.ring_limit(shared_memory), min(2, all_turns) * one
        if least > room and self.passes > 1:
            return replace(self, passes=1).fitted(k_in, shared_memory)
        if least > room:
            raise ValueError(f"{self}: {least} bytes of shared memory are needed; {room} are there")
        tiles = min(self.tiles, room // least)
        stages = min(self.stages, all_turns, room // (tiles * one))
        return replace(self, tiles=tiles, stages=stages)

    def shared_bytes(self, k_in: int, row_tiles: int) -> int:
        """Bytes of dynamic shared memory that a block needs.

        They hold the ring of weights (never more of it than there are weights) and the sums of the warps. Where one
        pass is made, the sums take the place of the ring.
        """
        sums, units = self.sum_bytes(self.tiles * row_tiles), -(-k_in // (32 * self.k_chunks))
        all_weights = units * self.k_chunks * self.tiles * STAGE_BYTES
        return self.ring_bytes + sums if self.passes > 1 else max(min(self.ring_bytes, all_weights), sums)

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring of stages that weights stream through."""
        return self.stages * self.warps * self.k_chunks * self.tiles * STAGE_BYTES

    def ring_limit(self, shared_memory: int) -> int:
        """Most bytes that the ring may take of a block's `shared_memory` bytes."""
        return shared_memory - DECLARED - (self.sum_bytes(SUMMED) if self.passes > 1 else 0)

    def sum_bytes(self, tiles: int) -> int:
        """Bytes of the sums of all warps, for a block of `tiles` tiles."""
        return self.warps * min(SUMMED, tiles) * TILE_BYTES


def limit_occupancy(needed: int, blocks: int, processors: int, room: int) -> int:
    """Bytes of shared memory to ask for where a block needs `needed`, so that none of `processors` SMs, with `room`
    bytes each, holds more than its share of `blocks`.

    Where kernels start early, the SMs that are free first would else take more blocks, and all would wait for these.
    This is no part of the code whose hash a tuned configuration carries: whoever changes it has to tune anew.
    """
    share = -(-blocks // processors)
    too_many = room // (share + 1) - RESERVED_SHARED + SHARED_UNIT
    enough = room // share - RESERVED_SHARED - DECLARED
    return max(needed, min(too_many, enough) // SHARED_UNIT * SHARED_UNIT)


def is_small(n_out: int, k_in: int) -> bool:
    """Return whether a weight [n_out, k_in] is read in less time than a kernel takes to begin and end."""
    return 2 * n_out * k_in < SMALL


def most_chunks(k_in: int) -> int:
    """Most 32-wide chunks of k that the warps may take in one turn: no more than there are."""
    return min(32, max(4, -(-k_in // 32)))


def turns(k_in: int, warps: int, k_chunks: int) -> int:
    """Return the number of passes in which `warps` warps, `k_chunks` chunks each, take all of k."""
    return -(-k_in // (32 * warps * k_chunks))

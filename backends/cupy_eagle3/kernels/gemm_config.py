"""How the work of `matmul_rows.cu` on a weight may be cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from specgate.backends.cupy_eagle3.kernels.loader import RESERVED_SHARED, multiprocessors, shared_memory_limit

MAX_ROWS: Final = 64
SMALL: Final = 8 * 2**20
"""Bytes of weight below which a product mostly waits: it gains from an early start, wherever that is, and from fewer
trips to memory. From there on blocks are spread over all SMs alike.
"""
WARPS: Final = (4, 8, 16)
SPANS: Final = (1, 2, 4)
STAGES: Final = (1, 2, 3, 4, 6)
SHALLOW: Final = 4
"""Stages at most of a block that makes one pass, where it is tried alone or at more rows than it was found at."""
TILES: Final = (1, 2, 3, 4)
ROW_TILE: Final = 8
"""Rows of x that a tensor core takes at a time."""
STAGE_BYTES: Final = 1024
"""Of a tile's chunk: 16 rows of weight, 32 of k, bfloat16."""
SHARED_UNIT: Final = 128
"""Bytes in which shared memory is given out."""
TILE_BYTES: Final = 512
"""Of a warp's sums of a tile: 16 features, 8 rows, float32."""
SUMMED: Final = 4
"""Tiles at most that the sums of the warps are taken of at a time."""
MANY_ROWS: Final = 16
"""Beyond which one tile of weight is usually best: more take too many registers."""
KEPT_REGISTERS: Final = 92
"""Of a thread's 128, those that may be taken by x, sums, and what they are multiplied with."""
DEEP: Final = 96 * 1024
"""Bytes of a ring from which on one block keeps an SM's share of memory busy."""
DECLARED: Final = 2 * 4 * MAX_ROWS
"""Bytes, at most, that a block declares beside its ring: per row its norm's factor, and what a choice must beat."""


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How the work on a weight is cut. `warps` and `span` are part of the arithmetic, so that the same must serve a
    weight at every number of rows; the others only move work, and may be others at other rows.

    `warps` split k, each taking `span` 32-wide chunks at a time; a block multiplies with `tiles` tiles of 16 rows of
    weight, which stream through `stages` stages of shared memory, and does so `passes` times, with other rows of weight
    each time. The next kernel may start at once, or, with `held` = 1, when this one's last weights are asked for.
    """

    warps: int = 16
    span: int = 2
    stages: int = 3
    tiles: int = 1
    passes: int = 1
    held: int = 0

    @property
    def split(self) -> tuple[int, int]:
        """How it splits k: what a row's bits depend on."""
        return self.warps, self.span

    def possible(self, n_out: int, k_in: int) -> bool:
        """Whether a weight [n_out, k_in] may be cut so; another matter is whether that fits a GPU."""
        splits = self.warps in WARPS and self.span in SPANS and self.warps * self.span <= widest(k_in)
        moves = self.stages in STAGES and self.tiles in TILES and self.held in (0, 1)
        groups = -(-n_out // (16 * self.tiles)) if moves else 0
        return (splits or self.split == GemmConfig().split) and moves and 1 <= self.passes <= groups

    def useful(self, n_out: int, k_in: int) -> bool:
        """No stage without work, no block of many features where these are few."""
        all_turns = turns(k_in, *self.split) * self.passes
        return min(2, all_turns) <= self.stages <= all_turns and 16 * self.tiles <= n_out // 64 + 16

    @classmethod
    def candidates(cls, n_out: int, k_in: int) -> tuple[GemmConfig, ...]:
        """What is worth trying for a weight [n_out, k_in] here: no warp without work, and two stages must fit. In one
        pass, or, where a block can keep x and an SM busy, in as many as leave no more blocks than SMs.
        """
        most = shared_memory_limit() // (2 * STAGE_BYTES)
        cuts = [
            config
            for config in (cls(*cut) for cut in product(WARPS, SPANS, STAGES, (1, 2)))
            if config.warps * config.span <= widest(k_in) and config.warps * config.span * config.tiles <= most
        ]
        found = [config for config in cuts if config.stages <= SHALLOW]
        if (gpu := multiprocessors()) is not None:
            several = (config.in_passes(n_out, gpu[0]) for config in cuts)
            found += (config for config in several if config.alone(n_out, k_in, 1, gpu[0]))
        return tuple(config for config in found if config.useful(n_out, k_in))

    def recuts(self, n_out: int, k_in: int, processors: int) -> tuple[GemmConfig, ...]:
        """The same arithmetic, moved in every way that is worth trying: in one pass, or in as many as leave a GPU of
        `processors` SMs no more blocks than three, two or one for each of them.
        """
        found = dict[GemmConfig, None]()
        for tiles, stages, held in product(TILES, STAGES, (0, 1)):
            once = GemmConfig(*self.split, stages, tiles, 1, held)
            for recut in (once, *(once.in_passes(n_out, blocks * processors) for blocks in (3, 2, 1))):
                if recut.useful(n_out, k_in) and recut.ring <= recut.room(shared_memory_limit()):
                    found[recut] = None
        return tuple(found)

    def in_passes(self, n_out: int, blocks: int) -> GemmConfig:
        """The same, in so many passes that there are no more than `blocks` blocks."""
        return replace(self, passes=-(-n_out // (16 * self.tiles * blocks)))

    def keeps(self, n_out: int, k_in: int, row_tiles: int) -> bool:
        """Whether a thread asks for all its share of x at once, `row_tiles` tiles of rows, and keeps it in registers:
        where these have room, for several passes, or of a small weight, whose turns would each wait for their x.
        """
        each = turns(k_in, *self.split)
        x, sums = 4 * each * self.span * row_tiles, 4 * self.tiles * row_tiles
        weights = 12 * self.tiles  # with their addresses
        serves = self.passes > 1 or (each > 1 and is_small(n_out, k_in))
        return serves and x + sums + weights <= KEPT_REGISTERS

    def alone(self, n_out: int, k_in: int, row_tiles: int, processors: int) -> bool:
        """Whether each of `processors` SMs has one block, which keeps x and has enough weights on their way for it."""
        enough = DEEP <= self.ring <= self.room(shared_memory_limit())
        several = self.passes > 1 and self == self.in_passes(n_out, processors)
        return enough and several and self.keeps(n_out, k_in, row_tiles)

    def at(self, rows: int) -> GemmConfig:
        """What was found at a few rows, as it is usually best cut at so many, with the registers that a thread has."""
        if rows <= ROW_TILE:
            return self
        once = replace(self, stages=min(self.stages, SHALLOW), passes=1)
        if rows <= MANY_ROWS:
            # Every block reads 16 rows of x: half as many blocks read half as much of them.
            return replace(once, tiles=2)
        of_two = shared_memory_limit() // (2 * self.warps * self.span * STAGE_BYTES)  # blocks that share an SM
        return replace(once, tiles=1, stages=min(once.stages, max(2, of_two)))

    def fitted(self, k_in: int, shared_memory: int) -> GemmConfig:
        """The same arithmetic within `shared_memory` bytes, no stage without work; in one pass where sums have no room
        beside the ring.
        """
        all_turns, one = turns(k_in, *self.split) * self.passes, self.warps * self.span * STAGE_BYTES
        room, least = self.room(shared_memory), min(2, all_turns) * one
        if least > room and self.passes > 1:
            return replace(self, passes=1).fitted(k_in, shared_memory)
        if least > room:
            raise ValueError(f"{self}: {least} bytes of shared memory are needed; {room} are there")
        tiles = min(self.tiles, room // least)
        stages = min(self.stages, all_turns, room // (tiles * one))
        return replace(self, tiles=tiles, stages=stages)

    def shared_bytes(self, k_in: int, row_tiles: int) -> int:
        """Of a block: the ring of weights, no more of it than there are weights, and the sums of the warps, which take
        its place where one pass is made.
        """
        sums, units = self.sums(self.tiles * row_tiles), -(-k_in // (32 * self.span))
        all_weights = units * self.span * self.tiles * STAGE_BYTES
        return self.ring + sums if self.passes > 1 else max(min(self.ring, all_weights), sums)

    @property
    def ring(self) -> int:
        """Its bytes."""
        return self.stages * self.warps * self.span * self.tiles * STAGE_BYTES

    def room(self, shared_memory: int) -> int:
        """Of so many bytes, those that the ring may take."""
        return shared_memory - DECLARED - (self.sums(SUMMED) if self.passes > 1 else 0)

    def sums(self, tiles: int) -> int:
        """Bytes of the sums of all warps for a block of `tiles` tiles."""
        return self.warps * min(SUMMED, tiles) * TILE_BYTES


def spread(needed: int, blocks: int, processors: int, room: int) -> int:
    """Bytes of shared memory to ask for where a block needs `needed`, so that each of `processors` SMs, with `room`
    bytes, holds no more than its share of `blocks`.

    Where kernels start early, the SMs that are free first would else take more blocks, and all wait for these. This is
    no part of the code whose hash a tuned configuration carries: who changes it tunes anew.
    """
    share = -(-blocks // processors)
    too_many = room // (share + 1) - RESERVED_SHARED + SHARED_UNIT
    enough = room // share - RESERVED_SHARED - DECLARED
    return max(needed, min(too_many, enough) // SHARED_UNIT * SHARED_UNIT)


def is_small(n_out: int, k_in: int) -> bool:
    """Whether a weight [n_out, k_in] is read in less time than a kernel takes to begin and end."""
    return 2 * n_out * k_in < SMALL


def widest(k_in: int) -> int:
    """Chunks that the warps may take in one turn: no more than there are."""
    return min(32, max(4, -(-k_in // 32)))


def turns(k_in: int, warps: int, span: int) -> int:
    """Times that a warp takes `span` chunks, until `warps` of them have taken all."""
    return -(-k_in // (32 * warps * span))

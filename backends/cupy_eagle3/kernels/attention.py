"""Launches `attention.cu`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, Heads
from specgate.backends.cupy_eagle3.kernels.loader import (
    RESERVED_SHARED,
    Kernel,
    expect,
    multiprocessors,
    shared_memory_limit,
)
from specgate.backends.cupy_eagle3.kernels.slots import Rows

QUERY_TILE = 16
"""Query rows that a block of threads holds: the heads of a group, for as many tokens as fit."""
LONGEST_TILE = 32 * BLOCK
"""A lane of a warp holds one entry of the block table."""
SHORTEST_TILE = 256
"""That is worth a block."""
STATIC_SHARED_BYTES = 8 * 1024
"""At most, that a block that attends declares beside its ring."""
PACED_BELOW: Final = 128
"""Size of a head. Shorter ones stand for small models, whose kernels before attention mostly wait for each other."""
PACE: Final = 5
"""Kilobytes that a warp of it then has on their way at a time, until the queries are there."""
STATISTICS = ("total", "span_empty", "mask_empty", "executed")
"""Of 32-key tiles: launched, beyond the slot's length, hidden by length or window within a chunk, worked on."""


@dataclass(frozen=True, slots=True)
class FmhaConfig:
    """How attention is cut: a block of `warps` warps attends over `kv_tile` positions, which are fixed absolute spans,
    so that no row's sum depends on another's. Both are part of the arithmetic: one configuration serves an engine.

    `stages`: pieces, 32 keys or the values of 32 keys, that a warp holds in shared memory; they only move work.
    """

    kv_tile: int = 512
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        if not BLOCK <= self.kv_tile <= LONGEST_TILE or self.kv_tile % BLOCK:
            raise ValueError(f"{self}: kv_tile must be a multiple of {BLOCK} up to {LONGEST_TILE}")
        if self.warps not in (2, 4, 8):
            raise ValueError(f"{self}: warps must be 2, 4 or 8")
        if not 1 <= self.stages <= 8:
            raise ValueError(f"{self}: stages must be 1 to 8")

    def ring(self, head_dim: int) -> int:
        """Its bytes."""
        return self.stages * self.warps * piece_bytes(head_dim)

    def fitted(self, head_dim: int, shared_memory: int) -> FmhaConfig:
        """The same arithmetic within `shared_memory` bytes of a block."""
        return replace(self, stages=min(self.stages, max(1, shared_memory // (self.warps * piece_bytes(head_dim)))))

    def side_by_side(self, head_dim: int, room: int) -> int:
        """Blocks that an SM with `room` bytes of shared memory holds at once. Their registers must fit, too."""
        return max(1, room // (self.ring(head_dim) + STATIC_SHARED_BYTES + RESERVED_SHARED))

    @classmethod
    def candidates(cls, heads: Heads) -> tuple[FmhaConfig, ...]:
        """What is worth trying for a cache of these heads: a tile decides how evenly blocks fill the GPU."""
        longest = max(BLOCK, heads.positions)
        tiles = (256, 384, 512, 640, 768, 1024, 1152, 1536, 2048)
        some = ((512, 4, 6), (384, 4, 4), (768, 8, 3), (896, 8, 3), (832, 8, 4), (832, 8, 5), (1024, 8, 4))
        cuts = (*((tile, 4, 3) for tile in tiles), *some)
        return tuple(cls(*cut) for cut in cuts if cut[0] <= longest)


def piece_bytes(head_dim: int) -> int:
    """Of a piece: 32 positions, one head, bfloat16."""
    return 32 * head_dim * 2


@dataclass(frozen=True, slots=True)
class Regime:
    """What holds for heads of `head_dim` and more, `slots` and more, `positions` and more: `config`, whose tile is yet
    to be fitted to whole waves of blocks, which take `share` of a GPU's places for blocks.
    """

    head_dim: int
    slots: int
    positions: int
    config: FmhaConfig
    share: float = 1.0

    def holds(self, heads: Heads, slots: int) -> bool:
        return heads.head_dim >= self.head_dim and slots >= self.slots and heads.positions >= self.positions


REGIMES: Final = (
    Regime(128, 4, 8192, FmhaConfig(kv_tile=1024)),
    Regime(128, 1, 0, FmhaConfig(kv_tile=1024)),
    Regime(0, 4, 8192, FmhaConfig(kv_tile=896, warps=8, stages=3)),
    # Blocks of one slot leave some SMs to the products around attention.
    Regime(0, 1, 0, FmhaConfig(kv_tile=832, warps=8, stages=5), share=0.96),
)
"""The first that holds counts; docs/performance.md says what they were compared with."""


def usual_config(heads: Heads, slots: int) -> FmhaConfig:
    """Of an engine of `slots` slots with up to `heads.positions` positions each."""
    regime = next(regime for regime in REGIMES if regime.holds(heads, slots))
    config, gpu = regime.config, multiprocessors()
    if gpu is None:
        return config
    processors, room = gpu
    fitted = config.fitted(heads.head_dim, shared_memory_limit() - STATIC_SHARED_BYTES)
    at_once = int(regime.share * processors * fitted.side_by_side(heads.head_dim, room))
    tile = tile_of_whole_waves(config.kv_tile, heads.positions, slots * heads.kv_heads, at_once)
    return replace(config, kv_tile=tile)


def tile_of_whole_waves(tile: int, positions: int, spans: int, at_once: int) -> int:
    """`tile`, where the blocks that it cuts `spans` spans of `positions` into are there `at_once`. Of more blocks, a
    tile near it that makes a whole number of such waves: the few of another wave would take as long as a whole one.
    """
    if -(-positions // tile) * spans <= at_once:
        return tile
    waves = max(1, round(positions * spans / (tile * at_once)))
    chunks = waves * at_once // spans
    if not chunks:
        return tile
    return min(max(-(-positions // (chunks * BLOCK)) * BLOCK, SHORTEST_TILE), LONGEST_TILE)


def joining_warps(chunks: int) -> int:
    """That join the chunks of a row, a power of two: each reads eight at once, and so all come in one go."""
    return 8 if chunks <= 64 else 16 if chunks <= 128 else 32


class Attention(Kernel):
    """softmax(q·kᵀ/√D)·v for `rows_per_slot` consecutive query rows per slot over paged keys and values, and before it
    rotation of queries and keys, and the new keys' and values' way into the cache.

    qkv: float32 [R', (N + 2G)·D] of `appended` rows per slot (default: those that ask); out: bfloat16 [R, N·D]. Row t
    of a slot stands at length + offset + t and sees itself and what is before it, at most `window` positions in all
    (None: everything). With `counts` (int32 [S]), a slot has only so many rows in qkv, the last of them stands at
    length + offset, and that one alone asks.
    """

    def __init__(
        self,
        heads: Heads,
        rows_per_slot: int,
        window: int | None = None,
        *,
        appended: int | None = None,
        config: FmhaConfig | None = None,
        statistics: bool = False,
    ) -> None:
        self.heads, self.window = heads, window
        self.rows_per_slot, self.appended = rows_per_slot, appended or rows_per_slot
        if self.appended != rows_per_slot and rows_per_slot != 1:
            raise ValueError(f"{rows_per_slot} of {self.appended} rows ask: all or one must")
        self.config = (config or FmhaConfig()).fitted(heads.head_dim, shared_memory_limit() - STATIC_SHARED_BYTES)
        self.statistics = statistics
        tile = self.config.kv_tile
        chunks = -(-heads.positions // tile)
        self.joining = joining_warps(chunks)  # not of the window's chunks: their number depends on that of the rows
        self.max_chunks = chunks if window is None else min(chunks, (window + rows_per_slot - 2) // tile + 2)
        super().__init__(
            "attention",
            **heads.constants,
            query_rows=rows_per_slot,
            appended_rows=self.appended,
            chunk=tile,
            warps=self.config.warps,
            stages=self.config.stages,
            max_chunks=self.max_chunks,
            window=window or 0,
            statistics=int(statistics),
            combine_warps=self.joining,
            pace_kilobytes=PACE if heads.head_dim < PACED_BELOW else 0,
            log2e_over_sqrt_head_dim=math.log2(math.e) / math.sqrt(heads.head_dim),
            shared_bytes=self.config.ring(heads.head_dim),
        )

    def partial_shapes(self, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the workspace for `slots` slots: unnormalised outputs per chunk, and their maxima and sums; float32."""
        rows = slots * self.rows_per_slot * self.heads.heads * self.max_chunks
        return (rows, self.heads.head_dim), (rows, 2)

    def __call__(
        self,
        out: Tensor,
        partial: tuple[Tensor, Tensor],
        k_pages: Tensor,
        v_pages: Tensor,
        qkv: Tensor,
        table: tuple[Tensor, Tensor],
        block_table: Tensor,
        length: Tensor,
        rows: Rows,
        *,
        offset: int,
        counts: Tensor | None = None,
        statistics: Tensor | None = None,
    ) -> None:
        """`rows` ask; `table`: cos and sin, float32 [P, D/2]; STATISTICS are added to `statistics`, int32 [4]."""
        h = self.heads
        if rows.per_slot != self.rows_per_slot:
            raise ValueError(f"{rows.per_slot} rows per slot for a launcher of {self.rows_per_slot}")
        if (statistics is not None) != self.statistics:
            raise ValueError(f"made for statistics = {self.statistics}")
        expect("qkv", qkv, (rows.slots * self.appended, h.qkv_width), torch.float32)
        expect("out", out, (rows.most, h.width), torch.bfloat16)
        expect("k_pages", k_pages, (1, h.kv_heads, BLOCK, h.head_dim), torch.bfloat16)
        expect("v_pages", v_pages, (1, h.kv_heads, h.head_dim, BLOCK), torch.bfloat16)
        expect("cosine", table[0], (h.positions, h.head_dim // 2), torch.float32)
        expect("block_table", block_table, (rows.slots, h.max_blocks), torch.int32)
        for name, given, shape in zip(("partial", "stats"), partial, self.partial_shapes(rows.slots), strict=True):
            expect(name, given, shape, torch.float32)
        tiles = -(-(h.heads // h.kv_heads) * self.rows_per_slot // QUERY_TILE)
        self.launch(
            "attention",
            (self.max_chunks * tiles, h.kv_heads, rows.slots),
            (self.config.warps * 32,),
            {
                "partial": partial[0],
                "partial_stats": partial[1],
                "k_pages": k_pages,
                "v_pages": v_pages,
                "statistics": statistics,
                "qkv": qkv,
                "cosine": table[0],
                "sine": table[1],
                "block_table": block_table,
                "length": length,
                "counts": counts,
                "active": rows.active,
                "active_count": rows.active_count,
                "offset": offset,
            },
        )
        self.launch(
            "attention_combine",
            (rows.most, h.heads),
            (self.joining * 32,),
            {
                "out": out,
                "partial": partial[0],
                "partial_stats": partial[1],
                "length": length,
                "active": rows.active,
                "active_count": rows.active_count,
                "offset": offset,
            },
            shared_bytes=0,  # so that it finds room beside attention, and what comes after it may start early
        )

"""Launchers of the kernels of verification over a part of the cache (SpecPV)."""

from __future__ import annotations

import math
from typing import Any, Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows


def stride_of(heads: Heads) -> int:
    """Return the blocks of `KEPT` positions that a slot can hold."""
    return heads.max_blocks * (BLOCK // KEPT)


class BlockBounds(Kernel):
    """The largest and smallest keys of those blocks of each slot that have come to lie before the window.

    `bounded`: how many blocks have bounds; up to MOST more get some, of `length` positions. `blocks`: of the cache in
    all.
    """

    heads: Heads
    kept: KeptBlocks
    blocks: int


class BlockScores(Kernel):
    """Upper bounds of the newest queries' scores for each block of the middle: float32 [layers, slots, G, blocks].

    `blocks`: of the cache in all; `slots`: of the engine. The first `query_rows` of the `asked_rows` rows of a slot in
    `asked` ask.
    """

    heads: Heads
    kept: KeptBlocks
    blocks: int
    slots: int
    query_rows: int
    asked_rows: int
    warps: int = 4

    @property
    def constants(self) -> dict[str, int | float]:
        return {**super().constants, "stride": stride_of(self.heads)}


class ChooseBlocks(Kernel):
    """The blocks of the largest scores: int32 [layers, S, G, retrieval], ascending. The lowest wins an exact tie.
    `slots`: of the engine.
    """

    heads: Heads
    kept: KeptBlocks
    slots: int
    threads: int = 512

    @property
    def constants(self) -> dict[str, int | float]:
        return {**super().constants, "stride": stride_of(self.heads)}


class AcceptReplayed(Kernel):
    """Decides how many drafts of each slot a full verification accepts, counts what it would not have chosen of the
    tokens that it ran again, and notes that all are verified. `rows`: per slot, with those that are run again.
    """

    kept: KeptBlocks
    drafts: int
    rows: int
    max_rows: int
    capacity: int


QUERY_TILE: Final = 16
"""Query rows of a warp: the query heads that share a key/value head, for as many tokens as fit."""
MOST_WARPS: Final = 8
STAGES: Final = {64: 4, 128: 2}
"""Size of a head → cache blocks that a block has room for in shared memory, so that two of them share an SM."""


class WideAttention(Kernel):
    """softmax(q·kᵀ/√D)·v for `rows_per_slot` query rows per slot, more than `Attention` is made for, over keys and
    values in bfloat16. Row t of a slot stands at position `first` + t.

    As `Attention` does, it rotates queries and keys, and writes the new keys and values into the cache. The newest
    `asked_rows` rows are those at position `length` and behind; their queries, rotated, are left in `asked`. Rows
    behind them have no meaning, and leave the cache alone.
    """

    def __init__(
        self,
        heads: Heads,
        rows_per_slot: int,
        asked_rows: int,
        config: FmhaConfig | None = None,
        *,
        sinks: bool = False,
    ) -> None:
        """`config`: its tile alone counts. `sinks`: as `Attention` has them. Raises ValueError for a cache of codes."""
        if heads.kv != "bf16":
            raise ValueError(f"a cache in {heads.kv}: wide attention reads keys and values in bf16 alone")
        self.heads, self.rows_per_slot, self.asked_rows = heads, rows_per_slot, asked_rows
        self.joined = Attention(heads, rows_per_slot, config=config, sinks=sinks)
        """It joins the chunks of a row; nothing else of it is launched."""
        tiles = -(-(heads.heads // heads.kv_heads) * rows_per_slot // QUERY_TILE)
        stages = STAGES[heads.head_dim]
        super().__init__(
            "wide_attention",
            **heads.constants,
            rows=rows_per_slot,
            asked_rows=asked_rows,
            chunk=self.joined.config.kv_tile,
            max_chunks=self.joined.max_chunks,
            warps=math.ceil(tiles / math.ceil(tiles / MOST_WARPS)),
            stages=stages,
            log2e_over_sqrt_head_dim=math.log2(math.e) / math.sqrt(heads.head_dim),
            shared_bytes=stages * 2 * BLOCK * heads.head_dim * 2,
            POSITIONS=heads.positions,
        )

    def partial_shapes(self, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As `Attention.partial_shapes`."""
        return self.joined.partial_shapes(slots)

    def __call__(self, out: Tensor, qkv: Tensor, rows: Rows, *groups: object, **operands: Any) -> None:
        """`first` int32 [S]; `asked`: bfloat16 [S, T, N, D], T ≥ `asked_rows`; the others as `Attention` has them."""
        sinks = operands.pop("sinks", None)
        self.launch(None, rows, *groups, qkv=qkv, **operands)
        self.joined.join(out, rows, *groups, length=operands["first"], offset=0, sinks=sinks)

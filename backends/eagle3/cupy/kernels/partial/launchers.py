"""Launchers of the kernels of verification over a part of the cache (SpecPV)."""

from __future__ import annotations

import math
from typing import Any, Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import QUERY_TILE, Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class BlockBounds(Kernel):
    """The largest and smallest keys of those blocks of each slot that have come to lie before the window.

    bounds: bfloat16 [layers, blocks, G, BLOCK / KEPT, 2, D], of keys [layers, blocks, G, BLOCK, D].
    """

    def __init__(self, heads: Heads, kept: KeptBlocks, blocks: int) -> None:
        """`blocks`: cache blocks in all."""
        self.heads, self.blocks = heads, blocks
        super().__init__(
            "block_bounds",
            **kept.middle,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            max_blocks=heads.max_blocks,
            blocks=blocks,
        )

    def __call__(
        self,
        bounds: Tensor,
        k_pages: Tensor,
        block_table: Tensor,
        bounded: Tensor,
        length: Tensor,
        rows: Rows,
        *,
        most: int,
    ) -> None:
        """`bounded` [S]: how many blocks have bounds; up to `most` more get some, of positions [S] `length`."""
        layers, h = len(k_pages), self.heads
        self.launch(
            (most, h.kv_heads, layers * rows.slots),
            rows,
            threads=h.head_dim,
            bounds=bounds,
            k_pages=k_pages,
            block_table=block_table,
            bounded=bounded,
            length=length,
            LAYERS=layers,
        )


WARPS: Final = 4
BLOCKS_OF_WARP: Final = 8


class BlockScores(Kernel):
    """Upper bounds of the newest queries' scores for each block of the middle: float32 [layers, slots, G, blocks].

    asked: bfloat16 [layers, S, T, N, D], of which the first `rows` rows of a slot ask.
    """

    def __init__(self, heads: Heads, kept: KeptBlocks, blocks: int, slots: int, rows: int, asked_rows: int) -> None:
        """`blocks`: cache blocks in all; `slots`: of the engine; `asked_rows`: T."""
        self.heads, self.blocks, self.slots, self.asked_rows = heads, blocks, slots, asked_rows
        self.stride = heads.max_blocks * (BLOCK // KEPT)
        super().__init__(
            "block_scores",
            **kept.middle,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            max_blocks=heads.max_blocks,
            blocks=blocks,
            slots=slots,
            query_rows=rows,
            asked_rows=asked_rows,
            stride=self.stride,
            warps=WARPS,
        )

    def __call__(
        self, scores: Tensor, bounds: Tensor, queries: Tensor, block_table: Tensor, length: Tensor, rows: Rows
    ) -> None:
        layers = len(bounds)
        self.launch(
            (-(-self.stride // (WARPS * BLOCKS_OF_WARP)), self.heads.kv_heads, layers * rows.slots),
            rows,
            threads=WARPS * 32,
            scores=scores,
            bounds=bounds,
            asked=queries,
            block_table=block_table,
            length=length,
            LAYERS=layers,
        )


THREADS: Final = 512


class ChooseBlocks(Kernel):
    """The blocks of the largest scores: int32 [layers, S, G, retrieval], ascending. The lowest wins an exact tie."""

    def __init__(self, heads: Heads, kept: KeptBlocks, slots: int) -> None:
        """`slots`: of the engine."""
        self.heads, self.kept, self.slots = heads, kept, slots
        self.stride = heads.max_blocks * (BLOCK // KEPT)
        super().__init__(
            "choose_blocks",
            **kept.middle,
            kv_heads=heads.kv_heads,
            retrieved=kept.retrieval,
            slots=slots,
            stride=self.stride,
            threads=THREADS,
        )

    def __call__(self, kept: Tensor, scores: Tensor, length: Tensor, rows: Rows) -> None:
        grid = self.heads.kv_heads, len(kept) * rows.slots
        self.launch(grid, rows, kept=kept, scores=scores, length=length, LAYERS=len(kept))


class AcceptReplayed(Kernel):
    """Decides how many drafts of each slot a full verification accepts, counts what it would not have chosen of the
    tokens that it ran again, and notes that all are verified.
    """

    def __init__(self, kept: KeptBlocks, drafts: int, rows_per_slot: int, max_rows: int, capacity: int) -> None:
        """`rows_per_slot`: with those that are run again; `max_rows`: of `Slots`."""
        self.max_rows = max_rows
        super().__init__(
            "accept_replayed",
            **kept.middle,
            retrieved=kept.retrieval,
            rows=rows_per_slot,
            drafts=drafts,
            max_rows=max_rows,
            capacity=capacity,
        )

    def __call__(
        self,
        choices: Tensor,
        verified: Tensor,
        dropped: Tensor,
        bounded: Tensor,
        overruled: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        counted = {"verified": verified, "dropped": dropped, "bounded": bounded, "overruled": overruled}
        self.launch((rows.slots,), slots, rows, threads=32, choices=choices, **counted)


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
        self.groups = -(-tiles // MOST_WARPS)
        self.warps = -(-tiles // self.groups)
        stages = STAGES[heads.head_dim]
        super().__init__(
            "wide_attention",
            **heads.constants,
            rows=rows_per_slot,
            asked_rows=asked_rows,
            chunk=self.joined.config.kv_tile,
            max_chunks=self.joined.max_chunks,
            warps=self.warps,
            stages=stages,
            log2e_over_sqrt_head_dim=math.log2(math.e) / math.sqrt(heads.head_dim),
            shared_bytes=stages * 2 * BLOCK * heads.head_dim * 2,
        )

    def partial_shapes(self, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As `Attention.partial_shapes`."""
        return self.joined.partial_shapes(slots)

    def __call__(self, out: Tensor, qkv: Tensor, rows: Rows, *groups: object, **operands: Any) -> None:
        """`first` int32 [S]; `asked`: bfloat16 [S, T, N, D], T ≥ `asked_rows`; the others as `Attention` has them."""
        h = self.heads
        if rows.rows_per_slot != self.rows_per_slot:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for a launcher of {self.rows_per_slot}")
        sinks = operands.pop("sinks", None)
        self.launch(
            (self.joined.max_chunks * self.groups, h.kv_heads, rows.slots),
            *(rows, *groups),
            threads=self.warps * 32,
            qkv=qkv,
            **operands,
            POSITIONS=h.positions,
        )
        self.joined.join(out, rows, *groups, length=operands["first"], offset=0, sinks=sinks)

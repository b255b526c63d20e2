"""Launches `wide_attention.cu`, and what joins its chunks."""

from __future__ import annotations

import math
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import QUERY_TILE, Attention
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

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

    def __init__(self, heads: Heads, rows_per_slot: int, asked_rows: int, config: FmhaConfig | None = None) -> None:
        """`config`: its tile alone counts. Raises ValueError for a cache of codes."""
        if heads.kv != "bf16":
            raise ValueError(f"a cache in {heads.kv}: wide attention reads keys and values in bf16 alone")
        self.heads, self.rows_per_slot, self.asked_rows = heads, rows_per_slot, asked_rows
        self.joined = Attention(heads, rows_per_slot, config=config)
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

    def __call__(
        self,
        out: Tensor,
        partial: tuple[Tensor, Tensor],
        k_pages: Tensor,
        v_pages: Tensor,
        queries: Tensor,
        qkv: Tensor,
        table: tuple[Tensor, Tensor],
        block_table: Tensor,
        first: Tensor,
        length: Tensor,
        rows: Rows,
    ) -> None:
        """`asked`: bfloat16 [S, T, N, D], T ≥ `asked_rows`; the others as `Attention` has them."""
        h = self.heads
        if rows.rows_per_slot != self.rows_per_slot:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for a launcher of {self.rows_per_slot}")
        self.launch(
            (self.joined.max_chunks * self.groups, h.kv_heads, rows.slots),
            rows,
            threads=self.warps * 32,
            partial=partial[0],
            partial_stats=partial[1],
            k_pages=k_pages,
            v_pages=v_pages,
            asked=queries,
            qkv=qkv,
            cosine=table[0],
            sine=table[1],
            block_table=block_table,
            first=first,
            length=length,
            POSITIONS=h.positions,
        )
        self.joined.join(out, partial, first, rows)

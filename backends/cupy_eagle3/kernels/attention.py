"""Launches `attention.cu`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, CHUNK, Heads
from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.slots import Rows


class Attention(Kernel):
    """softmax(q·kᵀ/√D)·v for `rows_per_slot` consecutive query rows per slot over paged keys and values.

    q and out: bfloat16 [R, N·D]. Row t of a slot stands at length + offset + t and sees itself and what is before it,
    at most `window` positions in all (None: everything).
    """

    def __init__(self, heads: Heads, rows_per_slot: int, window: int | None = None) -> None:
        self.heads, self.rows_per_slot, self.window = heads, rows_per_slot, window
        chunks = -(-heads.positions // CHUNK)
        self.max_chunks = chunks if window is None else min(chunks, (window + rows_per_slot - 2) // CHUNK + 2)
        super().__init__(
            "attention",
            **heads.constants,
            rows=rows_per_slot,
            chunk=CHUNK,
            max_chunks=self.max_chunks,
            window=window or 0,
            log2e_over_sqrt_head_dim=math.log2(math.e) / math.sqrt(heads.head_dim),
        )

    def partial_shapes(self, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the workspace for `slots` slots: unnormalised outputs per chunk, and their maxima and sums; float32."""
        rows = slots * self.rows_per_slot * self.heads.heads * self.max_chunks
        return (rows, self.heads.head_dim), (rows, 2)

    def __call__(
        self,
        out: Tensor,
        partial: tuple[Tensor, Tensor],
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        length: Tensor,
        rows: Rows,
        *,
        offset: int,
    ) -> None:
        h = self.heads
        if rows.per_slot != self.rows_per_slot:
            raise ValueError(f"{rows.per_slot} rows per slot for a launcher of {self.rows_per_slot}")
        expect("q", q, (rows.most, h.width), torch.bfloat16)
        expect("out", out, (rows.most, h.width), torch.bfloat16)
        expect("k_pages", k_pages, (1, h.kv_heads, BLOCK, h.head_dim), torch.bfloat16)
        expect("v_pages", v_pages, (1, h.kv_heads, h.head_dim, BLOCK), torch.bfloat16)
        expect("block_table", block_table, (rows.slots, h.max_blocks), torch.int32)
        for name, given, shape in zip(("partial", "stats"), partial, self.partial_shapes(rows.slots), strict=True):
            expect(name, given, shape, torch.float32)
        tiles = -(-(h.heads // h.kv_heads) * self.rows_per_slot // 16)
        place = (length, rows.active, rows.active_count, offset)
        self.launch(
            "attention",
            (self.max_chunks, h.kv_heads, rows.slots * tiles),
            (128,),
            *(*partial, q, k_pages, v_pages, block_table, *place),
        )
        self.launch("attention_combine", (rows.most, h.heads), (128,), out, *partial, *place)

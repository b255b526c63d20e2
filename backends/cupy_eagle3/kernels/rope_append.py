"""Launches `rope_append.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, Heads
from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.slots import Rows

HEADS_PER_BLOCK = 4


class RopeAppend(Kernel):
    """Rotate q and k of float32 qkv [R, (N + 2G)·D]; write q bfloat16 [R, N·D]; append k and v to the pages.

    Pages are bfloat16: k [blocks, G, BLOCK, D], v transposed [blocks, G, D, BLOCK]; `cosine`, `sine` float32 [P, D/2].
    Row t of a slot stands at length + offset + t. With `counts` (int32 [S]), a slot has only so many rows, the last of
    them stands at length + offset, and q gets that row alone, as row a.
    """

    def __init__(self, heads: Heads) -> None:
        super().__init__("rope_append", **heads.constants)
        self.heads = heads

    def __call__(
        self,
        q: Tensor,
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
    ) -> None:
        h = self.heads
        expect("q", q, (rows.slots if counts is not None else rows.most, h.width), torch.bfloat16)
        expect("qkv", qkv, (rows.most, h.qkv_width), torch.float32)
        expect("k_pages", k_pages, (1, h.kv_heads, BLOCK, h.head_dim), torch.bfloat16)
        expect("v_pages", v_pages, (1, h.kv_heads, h.head_dim, BLOCK), torch.bfloat16)
        expect("cosine", table[0], (h.positions, h.head_dim // 2), torch.float32)
        expect("block_table", block_table, (rows.slots, h.max_blocks), torch.int32)
        self.launch(
            "rope_append",
            (rows.most, -(-(h.heads + 2 * h.kv_heads) // HEADS_PER_BLOCK)),
            (h.head_dim // 2, HEADS_PER_BLOCK),
            *(q, k_pages, v_pages, qkv, *table, block_table, length, counts, rows.active, rows.active_count),
            *(rows.per_slot, offset),
        )

"""Launches `prefill_heads.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, SCALE_POSITIONS
from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced, expect

THREADS: Final = 256
TOGETHER: Final = 4
"""Heads that one block rotates, as in the kernel."""


class PrefillHeads(Kernel):
    """Rotates the queries and keys of positions 0 … P − 1 in place, in `qkv` bfloat16 [P, (N + 2G)·D], and writes keys
    and values into the cache of one layer.

    `k_pages` [blocks, G, BLOCK, D] and `v_pages` [blocks, G, D, BLOCK], bfloat16; `blocks` int64: the blocks of the
    positions, in order; `table`: cos and sin, float32 [P', D/2]. N may be 0.

    With `fp8`, pages are E4M3, `scales` float32 [blocks, G, BLOCK / SCALE_POSITIONS, 2] is filled as well, and keys and
    values in `qkv` become what the cache holds of them.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, fp8: bool = False) -> None:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        super().__init__("prefill_heads", **sizes, block=BLOCK, threads=THREADS, **({"kv_fp8": 1} if fp8 else {}))
        self.heads, self.kv_heads, self.head_dim, self.fp8 = heads, kv_heads, head_dim, fp8

    @announced
    def __call__(
        self,
        qkv: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        blocks: Tensor,
        table: tuple[Tensor, Tensor],
        scales: Tensor | None = None,
    ) -> None:
        """Raises ValueError for scales where there are none, and the other way around."""
        if (scales is not None) != self.fp8:
            raise ValueError(f"made for scales: {self.fp8}")
        positions, g, d = len(qkv), self.kv_heads, self.head_dim
        used = -(-positions // BLOCK)
        expect("qkv", qkv, (positions, (self.heads + 2 * g) * d), torch.bfloat16)
        cached = torch.uint8 if self.fp8 else torch.bfloat16
        expect("k_pages", k_pages, (1, g, BLOCK, d), cached)
        expect("v_pages", v_pages, (1, g, d, BLOCK), cached)
        expect("blocks", blocks, (used,), torch.int64)
        for name, angles in zip(("cosine", "sine"), table, strict=True):
            expect(name, angles, (positions, d // 2), torch.float32)
        self.launch(
            "prefill_heads",
            (used, -(-(self.heads + g) // TOGETHER) + (0 if self.fp8 else g)),
            (THREADS,),
            {
                "qkv": qkv,
                "k_pages": None if self.fp8 else k_pages,
                "v_pages": None if self.fp8 else v_pages,
                "blocks": blocks,
                "cosine": table[0],
                "sine": table[1],
                "positions": positions,
            },
        )
        if scales is None:
            return
        expect("scales", scales, (len(k_pages), g, BLOCK // SCALE_POSITIONS, 2), torch.float32)
        self.launch(
            "prefill_fp8",
            (used, g),
            (THREADS,),
            {
                "qkv": qkv,
                "k_pages": k_pages,
                "v_pages": v_pages,
                "scales": scales,
                "blocks": blocks,
                "positions": positions,
            },
        )

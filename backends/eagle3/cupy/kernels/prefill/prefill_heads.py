"""Launches `prefill_heads.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SWITCHES, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.lib.kv.modes import KvMode

THREADS: Final = 256
TOGETHER: Final = 4
"""Heads that one block rotates, as in the kernel."""


class PrefillHeads(Kernel):
    """Rotates the queries and keys of positions 0 … P − 1 in place, in `qkv` bfloat16 [P, (N + 2G)·D], and writes keys
    and values into the cache of one layer.

    `blocks` int64: the blocks of the positions, in order; `table`: cos and sin, float32 [P', D/2]. N may be 0. Pages,
    and the scales of formats that have some: as `memory.Pages` has them of one layer.

    In another format than bfloat16, keys and values in `qkv` become what the cache holds of them.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, kv: KvMode = "bf16") -> None:
        """`kv`: the format of the cache."""
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        super().__init__("prefill_heads", **sizes, block=BLOCK, threads=THREADS, **SWITCHES[kv])
        self.sizes = Heads(heads, kv_heads, head_dim, BLOCK, kv)

    def __call__(
        self,
        qkv: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        blocks: Tensor,
        table: tuple[Tensor, Tensor],
        scales: Tensor | None = None,
    ) -> None:
        """Raises ValueError for pages of another format, scales where there are none, and the other way around."""
        h, positions = self.sizes, len(qkv)
        used, plain = -(-positions // BLOCK), h.kv == "bf16"
        common: dict[str, ARGUMENT] = {"qkv": qkv, "blocks": blocks, "positions": positions}
        pages: dict[str, ARGUMENT] = {"k_pages": k_pages, "v_pages": v_pages, "scales": scales}
        coded: dict[str, ARGUMENT] = {**common, **pages, "PAGES": len(k_pages)}
        if not plain:  # before anything is written
            self.operands_of(f"prefill_{h.kv}").arguments((), coded)
        self.launch(
            (used, -(-(h.heads + h.kv_heads) // TOGETHER) + (h.kv_heads if plain else 0)),
            **common,
            **(pages if plain else {}),
            cosine=table[0],
            sine=table[1],
        )
        if h.kv == "nvfp4":
            self.launch((1, h.kv_heads), function="prefill_nvfp4_outer", threads=64, **coded)
        if not plain:
            self.launch((used, h.kv_heads), function=f"prefill_{h.kv}", **coded)

"""The sizes of an attention layer and of its cache, which its kernels are compiled with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from specgate.backends.eagle3.lib.kv.modes import NVFP4_ELEMENTS, KvMode
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry

BLOCK: Final = 64
"""Positions per cache block."""
SCALE_POSITIONS: Final = 16
"""Positions of a head that share a scale where the cache is in E4M3."""
OUTER_BYTES: Final = 16
"""Bytes behind the block scales of a cache block and head in NVFP4: two float32, and as much that nobody reads."""
SWITCHES: Final[Mapping[KvMode, Mapping[str, int]]] = {"bf16": {}, "fp8": {"kv_fp8": 1}, "nvfp4": {"kv_nvfp4": 1}}
"""The constant that a kernel is compiled with for a cache in the format."""


@dataclass(frozen=True, slots=True)
class Heads:
    """`heads` query heads and `kv_heads` key/value heads of `head_dim`, over up to `positions` positions per slot.

    `kv`: the format in which keys and values are cached. `norm_eps`: that of the RMSNorm which queries and keys of
    every head get before they are rotated; 0: they get none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    positions: int
    kv: KvMode = "bf16"
    norm_eps: float = 0.0

    @classmethod
    def of(cls, g: TargetGeometry | DraftGeometry, positions: int, kv: KvMode | None = None) -> Heads:
        """The heads of a target, or of a draft."""
        normed = isinstance(g, TargetGeometry) and g.head_norms
        return cls(g.heads, g.kv_heads, g.head_dim, positions, kv or "bf16", g.rms_eps if normed else 0.0)

    @property
    def width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def max_blocks(self) -> int:
        """Cache blocks that a slot can hold."""
        return -(-self.positions // BLOCK)

    @property
    def constants(self) -> dict[str, int | float]:
        norm = {"head_norm_eps": self.norm_eps} if self.norm_eps else {}
        cache = {"block": BLOCK, "kv_heads": self.kv_heads, "head_dim": self.head_dim, "max_blocks": self.max_blocks}
        return {"heads": self.heads, **cache, **SWITCHES[self.kv], **norm}

    @property
    def position_bytes(self) -> float:
        """Bytes of the key and value of one position in one layer, with its share of the scales. The two outer scales
        of a whole slot in NVFP4 are not counted.
        """
        scales = {"bf16": 0.0, "fp8": 4 / SCALE_POSITIONS, "nvfp4": self.head_dim / NVFP4_ELEMENTS}[self.kv]
        return 2 * self.kv_heads * (self.row_bytes + scales)

    @property
    def row_bytes(self) -> int:
        """Bytes of the key, or of the value, of one position and head, without scales."""
        return self.head_dim * {"bf16": 4, "fp8": 2, "nvfp4": 1}[self.kv] // 2

    @property
    def cached(self) -> torch.dtype:
        """Return the dtype of a page: numbers, or the bytes of codes."""
        return torch.bfloat16 if self.kv == "bf16" else torch.uint8

    @property
    def page_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the keys and of the values of a cache block in one layer: [G, BLOCK, D] and, transposed, [G, D, BLOCK]; in
        NVFP4 both [G, D / 16, 32, 16], for each of a warp's lanes 16 bytes at a time (`nvfp4.cuh`).
        """
        g, d = self.kv_heads, self.head_dim
        return ((g, d // 16, 32, 16),) * 2 if self.kv == "nvfp4" else ((g, BLOCK, d), (g, d, BLOCK))

    @property
    def scale_shape(self) -> tuple[tuple[int, ...], torch.dtype] | None:
        """Of the scales of a cache block in one layer: float32 [G, BLOCK / SCALE_POSITIONS, 2] of keys and values in
        E4M3; uint8 [G, 8·D + OUTER_BYTES] in NVFP4 (`nvfp4.cuh`); None in bfloat16.
        """
        if self.kv == "bf16":
            return None
        if self.kv == "fp8":
            return (self.kv_heads, BLOCK // SCALE_POSITIONS, 2), torch.float32
        return (self.kv_heads, 2 * BLOCK * self.head_dim // NVFP4_ELEMENTS + OUTER_BYTES), torch.uint8

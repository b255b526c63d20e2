"""The sizes of an attention layer and of its cache, which its kernels are compiled with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 64
"""Positions per cache block."""
SCALE_POSITIONS: Final = 16
"""Positions of a head that share a scale where the cache is in E4M3."""


@dataclass(frozen=True, slots=True)
class Heads:
    """`heads` query heads and `kv_heads` key/value heads of `head_dim`, over up to `positions` positions per slot.

    `fp8`: keys and values are cached in E4M3 with scales, else in bfloat16.
    """

    heads: int
    kv_heads: int
    head_dim: int
    positions: int
    fp8: bool = False

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
    def constants(self) -> dict[str, int]:
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "block": BLOCK,
            "max_blocks": self.max_blocks,
            **({"kv_fp8": 1} if self.fp8 else {}),
        }

    @property
    def position_bytes(self) -> float:
        """Bytes of the key and value of one position in one layer, with its share of the scales."""
        return 2 * self.kv_heads * (self.head_dim + 4 / SCALE_POSITIONS if self.fp8 else 2 * self.head_dim)

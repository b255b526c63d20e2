"""The sizes of an attention layer and of its cache, which its kernels are compiled with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 64
"""Positions per cache block."""


@dataclass(frozen=True, slots=True)
class Heads:
    """`heads` query heads and `kv_heads` key/value heads of `head_dim`, over up to `positions` positions per slot."""

    heads: int
    kv_heads: int
    head_dim: int
    positions: int

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
        }

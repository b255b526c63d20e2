"""Preallocated key/value caches, and which cached positions a row may look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Attention runs over whole blocks of this many keys at fixed absolute positions, the tail masked. torch's CPU kernel
# works in the same blocks, so a row adds up its keys in the same order however far the rows beside it look.
KEY_BLOCK = 512


def whole_blocks(positions: int) -> int:
    return -(-positions // KEY_BLOCK) * KEY_BLOCK


@dataclass(frozen=True, slots=True)
class KVCache:
    """`k[layer]`, `v[layer]`: [B, G, S, D]. A slot's valid length is kept by the engine; rewinding is forgetting."""

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, layers: int, batch: int, kv_heads: int, positions: int, head_dim: int, dtype: torch.dtype, device: str
    ) -> KVCache:
        shape = (batch, kv_heads, whole_blocks(positions), head_dim)

        def plane() -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(tuple(plane() for _ in range(layers)), tuple(plane() for _ in range(layers)))

    def slots(self, start: int, stop: int) -> KVCache:
        """A view of the slots [start, stop)."""
        return KVCache(tuple(k[start:stop] for k in self.k), tuple(v[start:stop] for v in self.v))

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.k, *self.v))


@dataclass(frozen=True, slots=True)
class View:
    """The span [start, stop) of cached positions that rows look at.

    `mask` [B, 1, T, stop − start] says which row sees what; without one, the rows are the span and see it causally.
    """

    start: int
    stop: int
    mask: Tensor | None
    causal: bool = False


def view(positions: Tensor, window: int | None) -> View:
    """What rows at `positions` [B, T] see, ascending per slot: themselves and what is before, at most `window` in all.

    Reads the extreme positions on the host: the reference is host-driven.
    """
    low, high = int(positions[:, 0].min()), int(positions[:, -1].max())
    start = 0 if window is None else max(0, low - window + 1)
    if low == 0 and len(positions) == 1 and (window is None or high < window):
        return View(0, high + 1, None, causal=True)
    stop = whole_blocks(high + 1)
    keys = torch.arange(start, stop, device=positions.device)
    mask = keys <= positions[..., None]
    if window is not None:
        mask &= keys > positions[..., None] - window
    return View(start, stop, mask[:, None])

"""Preallocated key/value caches, and which cached positions each query row may see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Attention runs over whole blocks of this many keys, at fixed absolute positions and with the tail masked. torch's CPU
# kernel uses the same blocks. So a row sums over its keys in the same order, however far the rows beside it look.
KEY_BLOCK = 512


def whole_blocks(positions: int) -> int:
    """`positions`, rounded up to whole blocks of keys."""
    return -(-positions // KEY_BLOCK) * KEY_BLOCK


@dataclass(frozen=True, slots=True)
class KVCache:
    """`k[layer]` and `v[layer]`: [B, G, S, D].

    The engine keeps the valid length of each slot. To rewind a slot is to lower its length; nothing is erased.
    """

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
        """A view of the slots from `start` up to, not including, `stop`."""
        return KVCache(tuple(k[start:stop] for k in self.k), tuple(v[start:stop] for v in self.v))

    def clear(self) -> None:
        """Back to zeros. A masked position still enters a product: what it holds must be finite."""
        for plane in (*self.k, *self.v):
            plane.zero_()

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.k, *self.v))


@dataclass(frozen=True, slots=True)
class View:
    """The span of cached positions [start, stop) that query rows attend to.

    `mask` bool [B, 1, T, stop − start] says which row sees which position. Without a mask the rows are the whole span,
    and attention is causal.
    """

    start: int
    stop: int
    mask: Tensor | None
    causal: bool = False


def view(positions: Tensor, window: int | None, *, causal: bool = True) -> View:
    """What query rows at `positions` [B, T] see; positions ascend within a slot.

    A row sees itself and earlier positions, at most `window` in all. Without `causal` there is a mask in any case. The
    first and last positions are read back to the host, which the reference engine can afford.
    """
    low, high = int(positions[:, 0].min()), int(positions[:, -1].max())
    start = 0 if window is None else max(0, low - window + 1) // KEY_BLOCK * KEY_BLOCK
    if causal and low == 0 and len(positions) == 1 and (window is None or high < window):
        return View(0, high + 1, None, causal=True)
    stop = whole_blocks(high + 1)
    keys = torch.arange(start, stop, device=positions.device)
    mask = keys <= positions[..., None]
    if window is not None:
        mask &= keys > positions[..., None] - window
    return View(start, stop, mask[:, None])

"""Preallocated key/value caches, which cached positions each query row may see, and rows of trees in a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.reference.kv_planes import Plane, allocate, clear, move_rows, slots_of
from specgate.backends.eagle3.reference.ops import FEW_ROWS

# Attention runs over whole blocks of this many keys, at fixed absolute positions and with the tail masked. torch's CPU
# kernel uses the same blocks. So a row sums over its keys in the same order, however far the rows beside it look.
KEY_BLOCK = 512


def whole_blocks(positions: int) -> int:
    """`positions`, rounded up to whole blocks of keys."""
    return -(-positions // KEY_BLOCK) * KEY_BLOCK


@dataclass(frozen=True, slots=True)
class KVCache:
    """`k[layer]` and `v[layer]`: [B, G, S, D], as tensors or in the format that `kv.planes` keeps them in.

    The engine keeps the valid length of each slot. To rewind a slot is to lower its length; nothing is erased.
    """

    k: tuple[Plane, ...]
    v: tuple[Plane, ...]

    @classmethod
    def allocate(
        cls,
        layers: int,
        batch: int,
        kv_heads: int,
        positions: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str,
        mode: KvMode | None = None,
        tree_rows: int = 0,
    ) -> KVCache:
        """`tree_rows`: how many neighbouring rows of a tree it may keep at once."""
        shape = (batch, kv_heads, whole_blocks(positions), head_dim)

        def planes(what: str) -> tuple[Plane, ...]:
            return tuple(
                allocate(mode, shape, dtype, device, f"{what} of layer {layer}", tree_rows) for layer in range(layers)
            )

        return cls(planes("keys"), planes("values"))

    def slots(self, start: int, stop: int) -> KVCache:
        """A view of the slots from `start` up to, not including, `stop`."""
        return KVCache(*(tuple(slots_of(plane, start, stop) for plane in planes) for planes in (self.k, self.v)))

    def clear(self) -> None:
        """Back to zeros. A masked position still enters a product: what it holds must be finite."""
        for plane in (*self.k, *self.v):
            clear(plane)

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.k, *self.v))


@dataclass(frozen=True, slots=True)
class View:
    """The span of cached positions [start, stop) that query rows attend to.

    `mask` bool [B, 1, T, stop − start] says which row sees which position. Without a mask the rows are the last of the
    span, and attention is causal.
    """

    start: int
    stop: int
    mask: Tensor | None
    causal: bool = False


def view(positions: Tensor, window: int | None, *, causal: bool = True) -> View:
    """Return the positions that query rows at `positions` [B, T] see; positions ascend within a slot.

    A row sees itself and earlier positions, at most `window` in all. Without `causal` there is a mask in any case. The
    first and last positions are read back to the host, which the reference engine can afford.
    """
    low, high = int(positions[:, 0].min()), int(positions[:, -1].max())
    start = 0 if window is None else max(0, low - window + 1) // KEY_BLOCK * KEY_BLOCK
    last = low == 0 or (positions.is_cuda and positions.shape[1] > FEW_ROWS)
    if causal and last and len(positions) == 1 and (window is None or high < window):
        return View(0, high + 1, None, causal=True)
    stop = whole_blocks(high + 1)
    keys = torch.arange(start, stop, device=positions.device)
    mask = keys <= positions[..., None]
    if window is not None:
        mask &= keys > positions[..., None] - window
    return View(start, stop, mask[:, None])


# ── trees ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Cache rows of a tree's T rows, and the path along which each of them looks.

    rows     [B, T]     the cache row that takes the key and value of each
    paths    [B, P, J]  per path, the cache rows whose keys and values belong at positions start … start + J − 1
    start    [B]        the first of these positions
    queries  [B, P, Q]  the rows (0 … T − 1) that look along a path; T stands for none
    at       [B, Q]     the position of each of these queries, the same for every path
    """

    rows: Tensor
    paths: Tensor
    start: Tensor
    queries: Tensor
    at: Tensor

    def slots(self, start: int, stop: int) -> TreeRows:
        """A view of the slots from `start` up to, not including, `stop`."""
        cut = slice(start, stop)
        return TreeRows(self.rows[cut], self.paths[cut], self.start[cut], self.queries[cut], self.at[cut])


def along_paths(tree: TreeRows, q: Tensor, k_cache: Plane, v_cache: Plane, look: Callable[[Tensor], Tensor]) -> Tensor:
    """Attention of the rows of a tree: q [B, N, T, D] → [B, T, N·D].

    Path by path, its keys and values are put at the positions that they have, and its rows `look` at the cache as those
    of a chain do: [B, N, Q, D] → [B, Q, N·D]. A mask over rows in the order of the tree would let each row see the same
    keys, but add them up in another order: its result could differ from plain decoding's in the last bits. A row that
    several paths share gets the same bits from each.
    """
    batch, heads, rows, size = q.shape
    out = q.new_empty(batch, rows + 1, heads * size)  # the last row takes what stands for none
    write = tree.start[:, None] + torch.arange(tree.paths.shape[2], device=q.device)
    for read, queries in zip(tree.paths.unbind(1), tree.queries.unbind(1), strict=True):
        move_rows(k_cache, read, write)
        move_rows(v_cache, read, write)
        index = queries.clamp(max=rows - 1)[:, None, :, None].expand(-1, heads, -1, size)
        mixed = look(q.gather(2, index))
        out.scatter_(1, queries[..., None].expand_as(mixed), mixed)
    return out[:, :rows]

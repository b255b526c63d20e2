"""The topology of a tree on the device, and the masks that follow from it.

Shapes: B trees, R = N + 1 rows each (the root first), L levels, P paths. `parents` int64 [B, R] has lower numbers than
its children; the root is its own parent.

Bit j % 32 of word j // 32 of row i is set where row i may look at row j. Bits beyond the last row are 0.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

NOBODY: Final = -1
"""Stands where a path has ended."""


def ancestors(parents: Tensor, levels: int) -> Tensor:
    """bool [B, R, R]: whether row i may look at row j, which is i itself or above it. No node is below level `levels`.

    Every row climbs one level at a time, all rows together.
    """
    batch, rows = parents.shape
    visible = torch.zeros(batch, rows, rows, dtype=torch.bool, device=parents.device)
    at = torch.arange(rows, device=parents.device).expand(batch, rows)
    for _ in range(levels + 1):
        visible.scatter_(2, at[..., None], True)
        at = parents.gather(1, at)
    return visible


def depths(mask: Tensor) -> Tensor:
    """int64 [B, R]: how many draft tokens are on the way to a row, itself included; 0 for the root."""
    return mask.sum(dim=2) - 1


def leaf_mask(mask: Tensor) -> Tensor:
    """bool [B, R]: rows that no other row looks at."""
    return mask.sum(dim=1) == 1


def leaf_paths(mask: Tensor, levels: int, count: int) -> Tensor:
    """int64 [B, count, levels + 1]: the rows from the root to each leaf, leaves ascending; -1 behind the end.

    `count` is at least the leaves of the tree that has most. Trees with fewer have paths of -1 alone at the end. All of
    it follows from the ancestor mask: a row that a leaf looks at stands at its own depth on the leaf's path.
    """
    rows = mask.shape[1]
    number = torch.arange(rows, device=mask.device)
    leaves = torch.where(leaf_mask(mask), number, rows).sort(dim=1).values[:, :count]
    on_path = mask.gather(1, leaves.clamp(max=rows - 1)[..., None].expand(-1, -1, rows)) & (leaves < rows)[..., None]
    return at_their_depths(on_path, depths(mask)[:, None].expand(-1, leaves.shape[1], -1), levels)


def at_their_depths(on_path: Tensor, depth: Tensor, levels: int) -> Tensor:
    """int64 [..., levels + 1]: the rows of each path, in the order of their depths; -1 behind the end.

    `on_path` bool [..., R] says which rows are on a path, and `depth` int64 [..., R] how deep each is.
    """
    place = torch.where(on_path, depth, levels + 1)
    path = torch.full((*on_path.shape[:-1], levels + 2), NOBODY, device=on_path.device)
    number = torch.arange(on_path.shape[-1], device=on_path.device).expand_as(place)
    return path.scatter_(-1, place, number)[..., : levels + 1]


BITS: Final = 32


def words(rows: int) -> int:
    """Words of a packed row."""
    return -(-rows // BITS)


def pack(mask: Tensor) -> Tensor:
    """bool [..., R, R] → int32 [..., R, words]."""
    columns = mask.shape[-1]
    padded = torch.nn.functional.pad(mask, (0, -columns % BITS))
    by_word = padded.view(*mask.shape[:-1], words(columns), BITS)
    weights = torch.ones(BITS, dtype=torch.int64, device=mask.device) << torch.arange(BITS, device=mask.device)
    return (by_word * weights).sum(dim=-1).to(torch.int32)  # keeps the low 32 bits, so that bit 31 is the sign


def unpack(packed: Tensor, rows: int) -> Tensor:
    """int32 [..., R, words] → bool [..., R, rows]."""
    bits = packed[..., None] >> torch.arange(BITS, device=packed.device, dtype=packed.dtype)
    return (bits & 1).bool().flatten(-2)[..., :rows]


def broken_rows(packed: Tensor, parents: Tensor) -> Tensor:
    """bool [B, R]: rows of the masks int32 [B, R, words] that are not what the tree of `parents` int64 [B, R] gives.

    A row has to look at what its parent looks at, and at itself; the root at itself alone; and a parent has to come
    before its child. By induction from the root on, masks without a broken row are the ancestor masks of the tree, with
    no bit beyond it. This does not build the masks a second time, and so shares no error with `topology.ancestors`.
    """
    rows = parents.shape[1]
    number = torch.arange(rows, device=parents.device)
    own = torch.zeros(rows, packed.shape[2], dtype=torch.int64, device=parents.device)
    own.scatter_(1, (number // BITS)[:, None], (torch.ones_like(number) << (number % BITS))[:, None])
    own = own.to(torch.int32)
    legal = (parents >= 0) & ((parents < number) | (number == 0))
    above = packed.gather(1, parents.clamp(0, rows - 1)[..., None].expand_as(packed))
    expected = torch.where((number == 0)[:, None], own, above | own)
    return (packed != expected).any(dim=2) | ~legal | ((number == 0) & (parents != 0))

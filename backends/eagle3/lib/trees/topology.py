"""Parents → what a verification needs: the ancestor mask, depths, leaves, and a path to every leaf.

Shapes: B trees, R = N + 1 rows each (the root first), L levels, P paths. `parents` int64 [B, R] has lower numbers than
its children; the root is its own parent.
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

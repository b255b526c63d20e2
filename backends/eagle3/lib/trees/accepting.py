"""The longest accepted path of a verified tree, and the cache rows that it leaves.

Shapes: B trees of R rows (the root first), L levels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.trees.topology import NOBODY, at_their_depths, depths


class Accepted(NamedTuple):
    """Tokens and path that a verification accepts.

    `length` [B]: draft tokens accepted. `path` [B, L + 1]: their rows behind the root's, then -1. `tokens` [B, L + 1]:
    the target's choice behind each row of the path. The first `length + 1` are emitted: the accepted draft tokens and
    the bonus token. Those behind have no meaning.
    """

    length: Tensor
    path: Tensor
    tokens: Tensor


def accept_tree(drafts: Tensor, targets: Tensor, parents: Tensor, mask: Tensor, levels: int) -> Accepted:
    """The longest path on which every draft token is the target's greedy choice behind its parent.

    `drafts` int64 [B, N]: the draft tokens, of row 1 on. `targets` int64 [B, R]: the target's greedy token behind each
    row. `mask` bool [B, R, R]: the ancestor mask of `parents` int64 [B, R]. Of equally long paths, that to the lowest
    row counts; siblings that are the same token would make such.
    """
    batch, rows = targets.shape
    agrees = drafts == targets.gather(1, parents[:, 1:])
    agrees = torch.cat((agrees.new_ones(batch, 1), agrees), dim=1)
    whole = ~(mask & ~agrees[:, None]).any(dim=2)
    depth = depths(mask)
    reached = torch.where(whole, depth, NOBODY)
    length = reached.max(dim=1).values
    number = torch.arange(rows, device=targets.device)
    last = torch.where(reached == length[:, None], number, rows).min(dim=1).values
    on_path = mask.gather(1, last[:, None, None].expand(-1, 1, rows))[:, 0]
    path = at_their_depths(on_path, depth, levels)
    return Accepted(length, path, targets.gather(1, path.clamp(min=0)))


def compaction(path: Tensor, start: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """(cache rows to read, cache rows to write), int64 [..., L] each, that put a path where its positions are.

    `path` [..., L + 1] begins with the root, whose cache row is `start` [...]. Row i of the tree is kept in cache row
    `first + i`. Level j is moved to `start + j`. Behind the end of a path, a row is moved onto itself. With
    `first = start` a tree lies where its positions begin, and no row is read after it was written even if levels are
    moved one after the other: a row's number is at least its depth.
    """
    levels = torch.arange(1, path.shape[-1], device=path.device)
    to = start[..., None] + levels
    rows = path[..., 1:]
    return torch.where(rows >= 0, first[..., None] + rows, to), to


def compact(cache: Tensor, read: Tensor, write: Tensor) -> None:
    """Move rows of `cache` [B, G, S, D], in place: what `read` [B, L] names to where `write` [B, L] says."""
    batch, groups, _, size = cache.shape
    index = read[:, None, :, None].expand(batch, groups, -1, size)
    cache.scatter_(2, write[:, None, :, None].expand_as(index), cache.gather(2, index))

"""Choice of the draft's candidates that become nodes: those that a file names, or the likeliest by cumulative
probability.

The draft runs level by level. At each level it runs on F nodes, the *frontier*, and gives the T likeliest tokens behind
each: F · T candidates, ordered by frontier node and then by rank. The candidates of all levels, one level after the
other, are the *pool*. A growth says which candidates are the next frontier, and in the end which are the tree. So a
parent comes before its children in the pool, and in the tree.

Source of the dynamic form: EAGLE-2, https://arxiv.org/abs/2406.16858, section 4: expand the likeliest, then rerank all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from specgate.backends.eagle3.nouns.trees.shape import TreeShape


class Growth(Protocol):
    """Rule by which a tree of `levels` levels and `nodes` draft tokens grows."""

    @property
    def levels(self) -> int: ...
    @property
    def nodes(self) -> int: ...

    def ranks(self, level: int) -> int:
        """Return the number of likeliest tokens behind each frontier node that are candidates of `level`, from 1 on."""

    def frontier(self, level: int, scores: Tensor) -> Tensor:
        """int64 [B, F]: the candidates of `level`, with `scores` [B, candidates], that the draft runs on next."""

    def chosen(self, scores: Tensor) -> Tensor:
        """int64 [B, N]: the entries of the pool, with `scores` [B, pool], that are the tree, ascending."""


@dataclass(frozen=True)
class FixedGrowth:
    """A tree of a file: the same candidates whatever their probabilities."""

    shape: TreeShape
    device: str = "cpu"

    @property
    def levels(self) -> int:
        return self.shape.depth

    @property
    def nodes(self) -> int:
        return self.shape.nodes

    def ranks(self, level: int) -> int:
        return 1 + max(path[-1] for path in self.shape.paths if len(path) == level)

    def frontier(self, level: int, scores: Tensor) -> Tensor:
        return self._frontiers[level - 1].expand(len(scores), -1)

    def chosen(self, scores: Tensor) -> Tensor:
        return self._chosen.expand(len(scores), -1)

    @cached_property
    def _plan(self) -> tuple[list[list[int]], list[int]]:
        """(candidates of every level but the last that have children, entries of the pool that are nodes)."""
        having = {path[:-1] for path in self.shape.paths}
        at: dict[tuple[int, ...], int] = {(): 0}  # path → its place in the frontier of its level
        frontiers, chosen, begin = list[list[int]](), list[int](), 0
        for level in range(1, self.levels + 1):
            ranks, below = self.ranks(level), list[tuple[int, tuple[int, ...]]]()
            for path in (p for p in self.shape.paths if len(p) == level):
                candidate = at[path[:-1]] * ranks + path[-1]
                chosen.append(begin + candidate)
                if path in having:
                    below.append((candidate, path))
            begin += len(at) * ranks
            frontiers.append([candidate for candidate, _ in below])
            at = {path: place for place, (_, path) in enumerate(below)}
        return frontiers[:-1], chosen

    @cached_property
    def _frontiers(self) -> list[Tensor]:
        return [torch.tensor(frontier, device=self.device) for frontier in self._plan[0]]

    @cached_property
    def _chosen(self) -> Tensor:
        return torch.tensor(self._plan[1], device=self.device)


@dataclass(frozen=True)
class DynamicGrowth:
    """The `nodes` likeliest of all candidates, by the product of the draft's probabilities along their paths.

    At each of `levels` levels the draft runs on the `width` likeliest candidates, and `width` tokens behind each are
    candidates. Exact ties go to the earlier entry of the pool. A child is never likelier than its parent and comes
    later, so that the likeliest candidates always are a tree.
    """

    levels: int
    width: int
    most: int

    @property
    def pool(self) -> int:
        """Candidates of all levels."""
        return self.width + (self.levels - 1) * self.width**2

    @property
    def nodes(self) -> int:
        """Draft tokens: as many as were asked for, or all candidates where there are fewer."""
        return min(self.most, self.pool)

    @property
    def depth(self) -> int:
        """Levels, by the name that a `TreeShape` has for them."""
        return self.levels

    @property
    def rows(self) -> int:
        """Rows of a verification: the draft tokens and the root."""
        return self.nodes + 1

    @property
    def forest(self) -> int:
        """Rows that the draft runs on while the tree grows, but for the root's."""
        return (self.levels - 1) * self.width

    @property
    def is_chain(self) -> bool:
        """It is drafted and verified as a tree, also where it has one branch."""
        return False

    def first_levels(self, count: int) -> DynamicGrowth:
        """Return the tree of a role of `count` draft tokens."""
        return DynamicGrowth(count, self.width, self.most)

    def ranks(self, level: int) -> int:
        return self.width

    def frontier(self, level: int, scores: Tensor) -> Tensor:
        return likeliest(scores, self.width)

    def chosen(self, scores: Tensor) -> Tensor:
        return likeliest(scores, self.nodes)


def likeliest(scores: Tensor, count: int) -> Tensor:
    """int64 [B, count]: the entries of `scores` [B, n] that are highest, in ascending order of entries. Of exact ties,
    the earlier ones.
    """
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values


def parents_of(chosen: Tensor, pool_parents: Tensor) -> Tensor:
    """int64 [B, R]: the parent of every row, the root first.

    `chosen` [B, N]: ascending entries of the pool. `pool_parents` [B, pool]: the pool's entry that is the parent of
    each, -1 for the root. A chosen entry's parent has to be chosen.
    """
    above = pool_parents.gather(1, chosen)
    place = torch.searchsorted(chosen.contiguous(), above.clamp(min=0)) + 1
    return torch.nn.functional.pad(torch.where(above < 0, 0, place), (1, 0))

"""A tree as its choices say it: one path of ranks per node, from which everything else follows."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

Ranks = tuple[int, ...]
"""The rank of every node on the way to one, from its first level on."""

DEEPEST: Final = 32
"""Levels. Acceptance falls by a third or more with each; no engine ships a tree of more than ten."""
WIDEST: Final = 64
"""Children of a node, and so ranks: 0 to 63."""
MOST_NODES: Final = 1023
"""Draft tokens, so that masks with the root have at most 32 words per row."""


@dataclass(frozen=True)
class TreeShape:
    """The nodes of a tree. `paths[i]` is node i + 1: the rank of every node on the way to it, the root left out.

    Rank r is the draft's r-th likeliest token after the parent, from 0 on. Paths are sorted by level and then by rank,
    which is the order of the nodes.
    """

    paths: tuple[Ranks, ...]

    @classmethod
    def of(cls, paths: Iterable[Ranks]) -> TreeShape:
        """The tree of `paths`, in any order. They must be a tree, which `file.py` checks."""
        return cls(tuple(sorted(paths, key=lambda path: (len(path), path))))

    @classmethod
    def chain(cls, k: int) -> TreeShape:
        """The tree with one branch: a chain of `k` draft tokens."""
        return cls(tuple((0,) * level for level in range(1, k + 1)))

    def first_levels(self, count: int) -> TreeShape:
        """The tree without what lies below its first `count` levels."""
        return TreeShape(tuple(path for path in self.paths if len(path) <= count))

    @property
    def nodes(self) -> int:
        """Draft tokens; the root is none."""
        return len(self.paths)

    @property
    def rows(self) -> int:
        """Rows of a verification: the draft tokens and the root."""
        return len(self.paths) + 1

    @property
    def depth(self) -> int:
        """Levels: draft tokens on the longest path."""
        return len(self.paths[-1])

    @property
    def is_chain(self) -> bool:
        return self.nodes == self.depth

    @cached_property
    def numbers(self) -> dict[Ranks, int]:
        """Path → node; the root is ()."""
        return {(): 0} | {path: i for i, path in enumerate(self.paths, 1)}

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The parent of every node, the root first, which counts as its own."""
        return (0, *(self.numbers[path[:-1]] for path in self.paths))

    @cached_property
    def children(self) -> tuple[int, ...]:
        """Number of children of every node, the root first."""
        counted = Counter(self.parents[1:])
        return tuple(counted[node] for node in range(self.rows))

    @property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, ascending."""
        return tuple(node for node in range(self.rows) if not self.children[node])

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:
        """Nodes of each level, from 1 on."""
        counted = Counter(map(len, self.paths))
        return tuple(counted[level] for level in range(1, self.depth + 1))

    @cached_property
    def non_leaves(self) -> tuple[int, ...]:
        """Nodes with children at each level, the root's first. The draft runs on that many rows to make the next."""
        counted = Counter(map(len, {path[:-1] for path in self.paths}))
        return tuple(counted[level] for level in range(self.depth))

    @property
    def branching(self) -> tuple[float, int]:
        """(mean, most) children of the nodes that have any, the root included."""
        having = [count for count in self.children if count]
        return sum(having) / len(having), max(having)

    @property
    def highest_rank(self) -> int:
        return max(path[-1] for path in self.paths)

    @property
    def skipped_ranks(self) -> int:
        """Nodes whose next likelier sibling is not in the tree: it would have been a better node."""
        return sum(path[-1] > 0 and (*path[:-1], path[-1] - 1) not in self.numbers for path in self.paths)

    @property
    def sha256(self) -> str:
        """Of the paths in their order, as compact JSON."""
        return hashlib.sha256(json.dumps(self.paths, separators=(",", ":")).encode()).hexdigest()

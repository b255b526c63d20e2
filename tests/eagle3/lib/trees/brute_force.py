"""Trees by brute force, in plain Python without tensors: the oracle of `specgate.backends.eagle3.nouns.trees`.

Everything is found by climbing from single nodes, by listing every path, and by sorting whole lists. `differences`
holds a batch of random trees against it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.trees import accepting, growing, topology

Candidate = tuple[int, ...]


@dataclass(frozen=True)
class ByHand:
    """A tree of which node i has the parent `parents[i]`; node 0 is the root."""

    parents: Sequence[int]

    def way(self, node: int) -> list[int]:
        """The nodes from the root down to `node`."""
        values = [node]
        while values[-1]:
            values.append(self.parents[values[-1]])
        return values[::-1]

    def leaves(self) -> list[int]:
        having = {self.parents[node] for node in range(1, len(self.parents))}
        return [node for node in range(len(self.parents)) if node not in having]

    def packed(self) -> list[list[int]]:
        """The ancestor mask as unsigned words of 32 bits."""
        count = -(-len(self.parents) // 32)
        rows = (sum(1 << node for node in self.way(row)) for row in range(len(self.parents)))
        return [[(bits >> (32 * word)) & 0xFFFFFFFF for word in range(count)] for bits in rows]

    def accepted(self, drafts: Sequence[int], targets: Sequence[int]) -> list[int]:
        """The longest way on which every draft token is what the target says behind the node before it."""
        best = [0]
        for node in range(1, len(self.parents)):
            way = self.way(node)
            right = all(drafts[below - 1] == targets[above] for above, below in pairwise(way))
            if right and len(way) > len(best):
                best = way
        return best


def random_parents(dice: random.Random, rows: int, levels: int) -> list[int]:
    """A random tree in the order of its nodes, of at most `levels` levels."""
    parents, depth, able = [0], [0], [0]
    for node in range(1, rows):
        parents.append(dice.choice(able))
        depth.append(depth[parents[-1]] + 1)
        if depth[-1] < levels:
            able.append(node)
    order = sorted(range(rows), key=lambda node: depth[node])  # stable: levels one after the other
    place = {node: i for i, node in enumerate(order)}
    return [place[parents[node]] for node in order]


def filled(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    return [[*row, *[-1] * (width - len(row))] for row in rows]


def differences(dice: random.Random, batch: int, rows: int, levels: int, tokens: int = 3) -> Iterator[str]:
    """List differences of the tensor functions from the oracle of `batch` random trees of `rows` rows.

    Draft and target tokens are below `tokens`, so that paths are accepted often, and siblings are often equal.
    """
    trees = [ByHand(random_parents(dice, rows, levels)) for _ in range(batch)]
    parents = torch.tensor([tree.parents for tree in trees])
    mask = topology.ancestors(parents, levels)
    packed = topology.pack(mask)
    expected = [[[word - (word >> 31 << 32) for word in row] for row in tree.packed()] for tree in trees]
    if packed.tolist() != expected:
        yield "packed masks"
    if not torch.equal(topology.unpack(packed, rows), mask):
        yield "unpacked masks"
    if topology.broken_rows(packed, parents).any():
        yield "integrity of whole masks"
    yield from unseen_damage(dice, packed, parents)
    if topology.depths(mask).tolist() != [[len(tree.way(n)) - 1 for n in range(rows)] for tree in trees]:
        yield "depths"
    leaves = [tree.leaves() for tree in trees]
    if topology.leaf_mask(mask).tolist() != [[n in of for n in range(rows)] for of in leaves]:
        yield "leaf mask"
    most = max(map(len, leaves))
    ways = [filled([tree.way(leaf) for leaf in of], levels + 1) for tree, of in zip(trees, leaves, strict=True)]
    full = [[*of, *[[-1] * (levels + 1)] * (most - len(of))] for of in ways]
    if topology.leaf_paths(mask, levels, most).tolist() != full:
        yield "paths"
    yield from acceptance(dice, trees, parents, mask, levels, tokens)


def unseen_damage(dice: random.Random, packed: Tensor, parents: Tensor) -> Iterator[str]:
    """A single flipped bit in one tree's masks has to be seen, in that tree alone."""
    damaged = packed.clone()
    tree, row, bit = (dice.randrange(n) for n in (len(packed), packed.shape[1], 32 * packed.shape[2]))
    damaged[tree, row, bit // 32] ^= torch.tensor(1 << 31 if bit % 32 < 31 else 1, dtype=torch.int64).to(torch.int32)
    if topology.broken_rows(damaged, parents).any(dim=1).nonzero().flatten().tolist() != [tree]:
        yield "integrity of a damaged mask"


def acceptance(
    dice: random.Random, trees: Sequence[ByHand], parents: Tensor, mask: Tensor, levels: int, tokens: int
) -> Iterator[str]:
    rows = parents.shape[1]
    drafts = [[dice.randrange(tokens) for _ in range(rows - 1)] for _ in trees]
    targets = [[dice.randrange(tokens) for _ in range(rows)] for _ in trees]
    best = [tree.accepted(d, t) for tree, d, t in zip(trees, drafts, targets, strict=True)]
    accept_tree = accepting.accept_tree(torch.tensor(drafts), torch.tensor(targets), parents, mask, levels)
    if accept_tree.length.tolist() != [len(way) - 1 for way in best]:
        yield "accepted counts"
    if accept_tree.path.tolist() != filled(best, levels + 1):
        yield "accepted paths"
    emitted = [row[: len(way)] for row, way in zip(accept_tree.tokens.tolist(), best, strict=True)]
    if emitted != [[of[node] for node in way] for of, way in zip(targets, best, strict=True)]:
        yield "emitted tokens"
    yield from moved(dice, best, accept_tree.path, rows)


def moved(dice: random.Random, best: Sequence[list[int]], path: Tensor, rows: int) -> Iterator[str]:
    """Compaction of a cache whose rows are numbers, in place and from behind the positions of the path."""
    levels = path.shape[1] - 1
    for gap in (0, levels):
        start = torch.tensor([dice.randrange(4) for _ in best])
        count = 4 + levels + gap + rows
        cache = torch.arange(len(best) * count * 2).view(len(best), 1, count, 2)
        expected = cache.clone()
        for tree, (begin, way) in enumerate(zip(start.tolist(), best, strict=True)):
            for level, node in enumerate(way[1:], 1):
                expected[tree, 0, begin + level] = cache[tree, 0, begin + gap + node]
        accepting.compact(cache, *accepting.compaction(path, start, start + gap))
        if not torch.equal(cache, expected):
            yield f"compaction with a gap of {gap}"


# ── growing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class MadeUpDraft:
    """A draft whose log-probabilities behind a path of ranks are made up, in few steps so that ties occur."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.seed, self.ranks = seed, ranks

    def behind(self, path: Candidate) -> list[float]:
        """Log-probabilities of the likeliest tokens behind `path`, descending, as multiples of 1/4."""
        dice = random.Random(f"{self.seed} {path}")
        return sorted((-dice.randrange(8) / 4 for _ in range(self.ranks)), reverse=True)


def likeliest_by_hand(draft: MadeUpDraft, levels: int, width: int, nodes: int) -> list[Candidate]:
    """The paths of a dynamic tree, in the order of its nodes: whole lists are made and sorted."""
    pool: list[tuple[float, Candidate]] = []
    frontier: list[tuple[float, Candidate]] = [(0.0, ())]
    for _ in range(levels):
        below = [
            (score + added, (*path, rank))
            for score, path in frontier
            for rank, added in enumerate(draft.behind(path)[:width])
        ]
        pool += below
        best = sorted(range(len(below)), key=lambda i: (-below[i][0], i))[:width]
        frontier = [below[i] for i in sorted(best)]
    best = sorted(range(len(pool)), key=lambda i: (-pool[i][0], i))[:nodes]
    return [pool[i][1] for i in sorted(best)]


def grown(drafts: Sequence[MadeUpDraft], growth: growing.Growth) -> tuple[list[list[Candidate]], Tensor]:
    """(the paths of every tree in the order of its nodes, the parents of its rows) as `growth` grows it."""
    batch = len(drafts)
    paths: list[list[Candidate]] = [[()] for _ in drafts]
    above = torch.full((batch, 1), -1)
    scores, pool_scores, pool_parents = torch.zeros(batch, 1), list[Tensor](), list[Tensor]()
    pool, begin = [list[Candidate]() for _ in drafts], 0
    for level in range(1, growth.levels + 1):
        ranks = growth.ranks(level)
        behind = [[draft.behind(path)[:ranks] for path in of] for draft, of in zip(drafts, paths, strict=True)]
        of_level = (scores[..., None] + torch.tensor(behind)).flatten(1)
        pool_scores.append(of_level)
        pool_parents.append(above.repeat_interleave(ranks, dim=1))
        below = [[(*path, rank) for path in of for rank in range(ranks)] for of in paths]
        for collected, more in zip(pool, below, strict=True):
            collected += more
        if level == growth.levels:
            break
        chosen = growth.frontier(level, of_level)
        paths = [[of[i] for i in picked] for of, picked in zip(below, chosen.tolist(), strict=True)]
        scores, above, begin = of_level.gather(1, chosen), chosen + begin, begin + of_level.shape[1]
    tree = growth.chosen(torch.cat(pool_scores, dim=1))
    parents = growing.parents_of(tree, torch.cat(pool_parents, dim=1))
    return [[of[i] for i in picked] for of, picked in zip(pool, tree.tolist(), strict=True)], parents


def growth_differences(dice: random.Random, batch: int, levels: int, width: int, nodes: int) -> Iterator[str]:
    """List differences of dynamic growth from the oracle of `batch` made-up drafts."""
    drafts = [MadeUpDraft(dice.randrange(1 << 60), width) for _ in range(batch)]
    growth = growing.DynamicGrowth(levels, width, nodes)
    paths, parents = grown(drafts, growth)
    expected = [likeliest_by_hand(draft, levels, width, nodes) for draft in drafts]
    if paths != expected:
        yield "the likeliest candidates"
    above = [[0, *(([(), *of]).index(path[:-1]) for path in of)] for of in expected]
    if parents.tolist() != above:
        yield "parents of grown nodes"

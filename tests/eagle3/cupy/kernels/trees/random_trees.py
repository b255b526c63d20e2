"""Random trees in plain Python, level by level, as the kernels want them: parents, masks, paths."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specgate.backends.eagle3.nouns.trees.shape import Ranks, TreeShape


def random_shape(dice: random.Random, nodes: int, levels: int, widest: int = 6) -> TreeShape:
    """A tree of `nodes` draft tokens that reaches level `levels`; ranks may be skipped."""
    paths: list[Ranks] = [(0,) * level for level in range(1, levels + 1)]
    while len(paths) < nodes:
        above = dice.choice([(), *(path for path in paths if len(path) < levels)])
        child = (*above, dice.randrange(widest))
        if child not in paths:
            paths.append(child)
    return TreeShape.of(paths)


def random_parents(dice: random.Random, rows: int, levels: int) -> tuple[int, ...]:
    """Of `rows` rows with the root, on at most `levels` levels."""
    return random_shape(dice, rows - 1, levels, widest=16).parents


def masks_of(parents: Sequence[int]) -> list[int]:
    """One mask per node, as signed 64-bit numbers."""
    results = list[int]()
    for node, parent in enumerate(parents):
        results.append((results[parent] if node else 0) | 1 << node)
    return [mask - (1 << 64) if mask >> 63 else mask for mask in results]

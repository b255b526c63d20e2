"""A draft tree in the GPU's memory: its topology as the kernels read it, and what the kernels of a tree hand on.

Node 0 is the root, the newest committed token. The draft runs on the nodes with children, but for the root, whose row
is the extension's: these are the *forest*, numbered in the order of the nodes. Of a dynamic tree it runs on as many
candidates per level, whatever becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.arrays import Arrays
from specgate.backends.eagle3.cupy.kernels.attention.attention import NodeTensors, TreeNodes
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import maxima_of
from specgate.backends.eagle3.cupy.kernels.trees.launchers import parts_of
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.checkpoints.geometry import DraftGeometry


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a tree: `nodes` nodes from `first` on, which are among the `top` likeliest tokens behind the `sources`
    rows that the draft ran on. On `rows` of them it runs next: as the rows that `forest` says; None at the last level.

    Of a dynamic tree, nodes are candidates: those of all levels are counted from 0 on.
    """

    first: int
    nodes: int
    top: int
    sources: int
    rows: int
    forest: TreeNodes | None


def levels_of(shape: DraftTree, whole: DraftTree) -> list[Level]:
    """The levels of `shape`, which is the first levels of `whole`."""
    if isinstance(shape, DynamicGrowth):
        assert isinstance(whole, DynamicGrowth)
        return dynamic_levels(shape, whole)
    assert isinstance(whole, TreeShape)
    levels, first, sources = list[Level](), 1, 1
    forest, masks = 0, sum(whole.non_leaves[1:])
    for level, nodes in enumerate(shape.level_sizes, 1):
        top = 1 + max(path[-1] for path in shape.paths[first - 1 : first - 1 + nodes])
        rows = shape.non_leaves[level] if level < shape.depth else 0
        levels.append(Level(first, nodes, top, sources, rows, TreeNodes(forest, masks, level - 1) if rows else None))
        first, sources, forest = first + nodes, rows, forest + rows
    return levels


def dynamic_levels(growth: DynamicGrowth, whole: DynamicGrowth) -> list[Level]:
    levels, first, sources, width = list[Level](), 0, 1, growth.width
    for level in range(1, growth.levels + 1):
        forest = TreeNodes((level - 1) * width, whole.forest, level - 1) if level < growth.levels else None
        levels.append(Level(first, sources * width, width, sources, width if forest else 0, forest))
        first, sources = first + sources * width, width
    return levels


def inner_nodes(shape: TreeShape) -> list[int]:
    """The nodes of the forest, ascending."""
    return [node for node in range(1, shape.rows) if shape.children[node]]


def masks_of(parents: Sequence[int]) -> list[int]:
    """The mask of every node as a signed 64-bit number: what its parent looks at, and itself. `parents` below 0: none
    is above it. A parent comes before its children.
    """
    masks = list[int]()
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if 0 <= parent < node else 0) | 1 << node)
    return [mask - (1 << 64) if mask >> 63 else mask for mask in masks]


def forest_masks(shape: TreeShape) -> list[int]:
    """The masks of the forest's nodes, by their own numbers."""
    number = {node: i for i, node in enumerate(inner_nodes(shape))}
    return masks_of([number.get(shape.parents[node], -1) for node in number])


def node_rows(shape: TreeShape) -> list[tuple[int, int, int]]:
    """Of every node but the root: the row of its parent among those that the draft ran on, its rank, and its own row
    among those that it runs on next, -1 without children.
    """
    own = dict[int, int]()  # node → its row among the forest's of its level
    rows = dict[int, int]()  # level → rows so far
    for node in inner_nodes(shape):
        level = len(shape.paths[node - 1])
        own[node] = rows[level] = rows.get(level, -1) + 1
    return [(own.get(shape.parents[node], 0), path[-1], own.get(node, -1)) for node, path in enumerate(shape.paths, 1)]


def widest(shape: DraftTree) -> int:
    """Rows per slot that the draft runs on at most."""
    return max(level.sources for level in levels_of(shape, shape))


def node_scales(heads: Heads, layers: int, masks: Tensor) -> Tensor | None:
    """Scales that the paths of nodes with `masks` [S, T] make of keys and values, float32 [layers, S, G, T, 2]; None of
    a cache that has no such scales.
    """
    slots, nodes = masks.shape
    return torch.ones(layers, slots, heads.kv_heads, nodes, 2, device=masks.device) if heads.kv == "fp8" else None


@dataclass(frozen=True, slots=True)
class TreeBuffers(Arrays):
    """For S slots and a tree of R rows on L levels, of whose forest there are Q nodes, F of a level at most.

    `masks` and `parents`: what each node looks at, and its parent, the root its own. `forest`: the masks of the forest.
    `nodes`: see `node_rows`; of a dynamic tree it has no rows. `path`: the accepted nodes. `readers`: zero between
    steps. `stream`: the draft's residual stream of every other level.

    Of the tree of a file, `maxima` is what the LM head leaves beside its logits. Of a dynamic tree, `candidates` are
    the likeliest tokens of the rows that the draft ran on, `sums` is what `TreeTop` sums of these, and `pool` all
    candidates: the probability of the path to each, as bits that compare as it does, and its column of the draft's
    logits. Of the forest's rows, `entries` is each one's candidate, and `scores` the logarithm of its path's
    probability. `scales` and `forest_scales`, of all layers: see `node_scales`.
    """

    masks: Annotated[Tensor, "int64 [S, R]"]
    parents: Annotated[Tensor, "int32 [S, R]"]
    forest: Annotated[Tensor, "int64 [S, Q]"]
    nodes: Annotated[Tensor, "int32 [0, 3]"]
    path: Annotated[Tensor, "int32 [S, L + 1]"]
    readers: Annotated[Tensor, "int32 [S]"]
    stream: Annotated[Tensor, "float32 [S * F, H]"]
    maxima: Annotated[Tensor | None, "int32 [S * F, WORDS] if !DYNAMIC"] = None
    candidates: Annotated[Tensor | None, "int64 [S * LISTED * PARTS] if DYNAMIC"] = None
    sums: Annotated[Tensor | None, "float32 [S * F * PARTS, 2] if DYNAMIC"] = None
    pool: Annotated[Tensor | None, "int32 [S, POOL, 2] if DYNAMIC"] = None
    entries: Annotated[Tensor | None, "int32 [S, Q] if DYNAMIC"] = None
    scores: Annotated[Tensor | None, "float32 [S, Q] if DYNAMIC"] = None
    scales: Tensor | None = None
    forest_scales: Tensor | None = None

    @property
    def in_target(self) -> NodeTensors:
        """The nodes as the target's attention has them, of all layers."""
        return NodeTensors(self.masks, self.scales)

    @property
    def in_draft(self) -> NodeTensors:
        """The forest's nodes as the draft's attention has them."""
        return NodeTensors(self.forest, self.forest_scales)

    def with_scales(self, layers: int, target: Heads, draft: Heads) -> TreeBuffers:
        """The same for caches of these heads, the target's of so many layers."""
        return replace(
            self, scales=node_scales(target, layers, self.masks), forest_scales=node_scales(draft, 1, self.forest)
        )

    @classmethod
    def allocate(cls, shape: DraftTree, g: DraftGeometry, slots: int, device: torch.device | str) -> TreeBuffers:
        levels, vocab = levels_of(shape, shape), g.draft_vocab
        of_draft = {"F": widest(shape), "H": g.hidden, "PARTS": parts_of(vocab), "WORDS": maxima_of(vocab)}
        zeros = partial(cls.zeros, device, S=slots, R=shape.rows, L=shape.depth, **of_draft)
        if isinstance(shape, DynamicGrowth):
            listed = max(level.sources * level.top for level in levels)
            return zeros(DYNAMIC=1, Q=shape.forest, POOL=shape.pool, LISTED=listed)

        def of(values: Sequence[int], dtype: torch.dtype) -> Tensor:
            """The same for every slot, in memory of its own."""
            return torch.tensor([list(values)] * slots, dtype=dtype, device=device)

        return zeros(
            DYNAMIC=0,
            masks=of(masks_of(shape.parents), torch.int64),
            parents=of(shape.parents, torch.int32),
            forest=of(forest_masks(shape), torch.int64),
            nodes=torch.tensor(node_rows(shape), dtype=torch.int32, device=device),
        )

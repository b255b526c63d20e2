"""Costs of a tree in an engine, and its gain: sizes, buffers, cache and logits, expected acceptance length.

The names of the sizes are those of TensorRT-LLM and TurboMind (`spec_config/sizes.py`). Buffers are those of
`topology.py` and `accepting.py` in the dtypes that kernels use for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from typing import Final

from specgate.backends.eagle3.nouns.trees.shape import WIDEST, Ranks, TreeShape
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.checkpoints.spec_config.sizes import SpecConfig

INT32: Final = 4
WORD_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of a step. `why`: what it holds."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    why: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * {"int32": INT32, "bool": 1, "float32": 4}[self.dtype]


@dataclass(frozen=True, slots=True)
class Room:
    """The sizes of an engine. None: as large as the tree needs. `batch`: requests at a time."""

    batch: int
    max_decoding_tokens: int | None = None
    max_path_len: int | None = None
    num_speculative_tokens: int | None = None
    max_non_leaves_per_layer: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a step for a pair.

    `position`: of one cached position, target and draft. `tree`, `chain`: cache that a step of this tree, and of a
    chain of as many levels, writes for all requests. `logits`: float32 logits of all rows of the tree.
    """

    position: int
    tree: int
    chain: int
    logits: int


def advised(shape: TreeShape) -> SpecConfig:
    """The smallest sizes that hold the tree."""
    return SpecConfig(
        num_speculative_tokens=shape.depth,
        max_path_len=shape.depth + 1,
        max_decoding_tokens=shape.rows,
        max_non_leaves_per_layer=max(shape.non_leaves),
    )


def too_small(shape: TreeShape, room: Room) -> Iterator[str]:
    """One sentence for every size of `room` that does not hold the tree."""
    needed = advised(shape)
    for name in ("num_speculative_tokens", "max_path_len", "max_decoding_tokens", "max_non_leaves_per_layer"):
        available, least = getattr(room, name), getattr(needed, name)
        if available is not None and available < least:
            yield f"{name} = {available} does not hold this tree, which needs {least}"


def buffers(shape: TreeShape, room: Room) -> tuple[Buffer, ...]:
    """The buffers of a step, as large as `room` says or as the tree needs."""
    batch = room.batch
    rows = room.max_decoding_tokens or shape.rows
    path = room.max_path_len or shape.depth + 1
    return (
        Buffer("draft_tokens", (batch, rows - 1), "int32", "draft tokens, level by level"),
        Buffer("parents", (batch, rows), "int32", "parent of every row"),
        Buffer("positions", (batch, rows), "int32", "cached length + depth"),
        Buffer("leaf_mask", (batch, rows), "bool", "rows without children"),
        Buffer("draft_paths", (batch, rows, path), "int32", "rows from root to every leaf"),
        Buffer("packed_masks", (batch, rows, -(-rows // WORD_BITS)), "int32", "what a row may look at"),
        Buffer("accepted_path", (batch, path), "int32", "accepted rows"),
        Buffer("packed_paths", (batch * (path - 1),), "int32", "accepted rows of all requests"),
        Buffer("path_offsets", (batch + 1,), "int32", "where each request's begin"),
    )


def blocks(rows: int, block_size: int) -> int:
    """Cache blocks that a request must have left for a step of `rows` rows, where its last block is full."""
    return -(-rows // block_size)


def memory(shape: TreeShape, room: Room, target: TargetGeometry, draft: DraftGeometry, element: int) -> Memory:
    """Bytes for a pair whose caches have elements of `element` bytes."""
    position = target.layers * 2 * target.kv_heads * target.head_dim * element
    drafting = 2 * draft.kv_heads * draft.head_dim * element
    rows = room.max_decoding_tokens or shape.rows
    # The draft keeps keys and values of the nodes that it runs on, which are those with children.
    cached_nodes = sum(shape.non_leaves[1:])
    return Memory(
        position + drafting,
        room.batch * (rows * position + cached_nodes * drafting),
        room.batch * ((shape.depth + 1) * position + (shape.depth - 1) * drafting),
        room.batch * rows * target.vocab * 4,
    )


def expected_length(shape: TreeShape, ranks: Sequence[float]) -> float:
    """The acceptance length, bonus token included, where the target's token has rank r behind any node with
    probability `ranks[r]`, and 0 beyond, whatever was accepted before: 1 + the sum over all nodes of the product along
    their paths. A draft gets worse with depth, so that real trees give less.
    """
    known = dict(enumerate(ranks))
    return 1 + sum(prod(known.get(rank, 0.0) for rank in path) for path in shape.paths)


def likeliest_tree(nodes: int, depth: int, ranks: Sequence[float]) -> TreeShape:
    """The tree of `nodes` draft tokens, on at most `depth` levels, whose `expected_length` is the highest.

    A child is never likelier than its parent, so that the likeliest paths are found one after the other.
    """
    paths: list[Ranks] = []
    open_: list[tuple[float, Ranks]] = [(-1.0, ())]
    while open_ and len(paths) < nodes:
        score, path = heappop(open_)
        paths += [path] if path else []
        if len(path) < depth:
            for rank, share in enumerate(ranks[:WIDEST]):
                heappush(open_, (score * share, (*path, rank)))
    return TreeShape.of(paths)


def as_data(shape: TreeShape) -> dict[str, object]:
    """Describe a tree by name."""
    mean, most = shape.branching
    return {
        "draft_tokens": shape.nodes,
        "rows": shape.rows,
        "levels": shape.depth,
        "chain": shape.is_chain,
        "nodes_by_level": list(shape.level_sizes),
        "non_leaves_by_level": list(shape.non_leaves),
        "leaves": len(shape.leaves),
        "mean_branching": mean,
        "most_children": most,
        "highest_rank": shape.highest_rank,
        "skipped_ranks": shape.skipped_ranks,
        "sha256": shape.sha256,
    }

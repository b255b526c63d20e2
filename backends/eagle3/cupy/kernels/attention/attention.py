"""Launches `attention.cu`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from torch import Tensor

from specgate.backends.eagle3.cupy.device import shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import STATIC_SHARED_BYTES, FmhaConfig
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

PACED_BELOW: Final = 128
"""Size of a head. A smaller one means a small model, whose kernels before attention mostly wait for each other."""
PACE: Final = 5
"""Kilobytes that a warp of attention then has on their way at a time, until the queries are there."""
KEPT_TILE: Final = 256
"""Positions of a tile where a part of the cache is read: that is short, and is divided among all SMs."""
STATISTICS = ("total", "span_empty", "mask_empty", "executed")
"""What is counted of tiles of 32 keys: those launched, those beyond the slot's length, those that length or window hide
within a chunk, and those worked on.
"""


MOST_JOINED: Final = 8
"""Most chunks that attention itself may join: no sum of those that join them has two."""
MOST_NODES: Final = 64
"""Nodes of a tree with its root: a mask has 64 bits."""


@dataclass(frozen=True, slots=True)
class TreeNodes:
    """The rows of a launch are nodes `first` … of a tree, in the order of its levels.

    `masks`: how many masks a slot has; `levels`: how many positions behind the slot's first node the deepest row
    stands.
    """

    first: int
    masks: int
    levels: int

    def constants(self, rows: int) -> dict[str, int]:
        """Return the constants of `tree_rows.cuh`, where `rows` are the newest."""
        last = self.first + rows
        return {"tree_rows": last, "tree_stride": self.masks, "tree_levels": self.levels, "first_node": self.first}

    def shared_bytes(self, rows: int, heads: Heads) -> int:
        """Bytes of shared memory that a block has for keys and values of the nodes, where `rows` are the newest."""
        return 2 * (self.first + rows) * (heads.row_bytes + 16)


@dataclass(frozen=True, slots=True)
class NodeTensors:
    """What attention has of a tree's T nodes. `masks` int64 [S, T]: bit m where a node looks at node m. `node_scales`
    float32 [S, G, T, 2], of a cache in E4M3: those that the nodes' paths make of one layer's keys and values.
    """

    masks: Tensor
    node_scales: Tensor | None = None

    def of_layer(self, index: int) -> NodeTensors:
        """Return those of a layer, of which `node_scales` [layers, …] has all."""
        return self if self.node_scales is None else NodeTensors(self.masks, self.node_scales[index])


class Workspace(NamedTuple):
    """Of the chunks of rows, float32: outputs that are not divided yet; maxima and sums. See `partial_shapes`."""

    partial: Tensor
    partial_stats: Tensor


@dataclass(frozen=True, slots=True)
class LayerPages:
    """The cache of one layer: pages and, in formats that have some, scales, as `memory.Pages` has them."""

    k_pages: Tensor
    v_pages: Tensor
    scales: Tensor | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that shapes of operands name."""
        return {"PAGES": len(self.k_pages)}


def joining_warps(chunks: int) -> int:
    """Return how many warps join the chunks of a row, a power of two. Each reads eight chunks at once."""
    return 8 if chunks <= 64 else 16 if chunks <= 128 else 32


class Attention(Kernel):
    """softmax(q·kᵀ/√D)·v for `rows_per_slot` consecutive query rows per slot, over paged keys and values.

    Before that it norms queries and keys, if the heads have norms, rotates them, and writes the new keys and values
    into the cache, in the format that the heads name.

    qkv: float32 [R', (N + 2G)·D], `appended` rows per slot (default: the query rows alone); out: bfloat16 [R, N·D]. Row
    t of a slot stands at position length + offset + t. It sees itself and what is before it, at most `window` positions
    in all (None: everything). With `counts` (int32 [S]) a slot has only so many rows in qkv. The last of them stands at
    length + offset, and is the only query row. With `sinks`, each query head has a logit that takes a share of the
    softmax, and has no value.

    With `tree`, row t is a node of a tree, and stands behind the slot's first position by the number of nodes above it.
    It sees what is before that position, and of the tree the nodes of its mask. What it sees stands where it would
    stand in a chain, and so a row's bits are the chain's of its path.

    With `kept`, the rows of a chain see a part of the cache alone: of what is before them, the blocks that `kept`
    says, and those that each key/value head has retrieved.

    With `may_join`, and where a row sees few chunks, attention joins them itself. The bits are the same, and a launch
    is saved. It is worth it for windows: a row that sees two chunks or more waits for the last of their blocks.
    """

    def __init__(
        self,
        heads: Heads,
        rows_per_slot: int,
        window: int | None = None,
        *,
        appended: int | None = None,
        config: FmhaConfig | None = None,
        statistics: bool = False,
        sinks: bool = False,
        may_join: bool = False,
        tree: TreeNodes | None = None,
        kept: KeptBlocks | None = None,
    ) -> None:
        """Raises ValueError for more nodes than a mask has bits, for rows that no kernel has, and for a part of
        anything but a plain cache.
        """
        self.heads, self.window, self.sinks = heads, window, sinks
        self.rows_per_slot, self.appended = rows_per_slot, appended or rows_per_slot
        if self.appended != rows_per_slot and rows_per_slot != 1:
            raise ValueError(f"{rows_per_slot} of {self.appended} rows are query rows: all or one must be")
        if tree is not None and (tree.first + rows_per_slot > MOST_NODES or self.appended != rows_per_slot):
            raise ValueError(f"{tree} of {rows_per_slot} rows: at most {MOST_NODES} nodes, all of which are query rows")
        if kept is not None and (tree or window or heads.kv != "bf16" or self.appended != rows_per_slot):
            raise ValueError("a part of the cache is read in bf16 alone, by chains without a window")
        self.tree, self.kept = tree, kept
        static = STATIC_SHARED_BYTES + (tree.shared_bytes(rows_per_slot, heads) if tree else 0)
        self.config = (config or FmhaConfig()).fitted(heads.head_dim, shared_memory_limit() - static, kv=heads.kv)
        self.statistics = statistics
        tile = self.config.kv_tile
        chunks = -(-(heads.positions if kept is None else min(kept.positions, heads.positions)) // tile)
        self.joining = joining_warps(chunks)  # not of the window's chunks: their number depends on that of the rows
        behind = tree.levels if tree else rows_per_slot - 1
        self.max_chunks = chunks if window is None else min(chunks, (window + behind - 1) // tile + 2)
        self.joins = may_join and kept is None and self.max_chunks <= MOST_JOINED
        super().__init__(
            "attention",
            **(heads.constants | (kept.constants if kept else {})),
            query_rows=rows_per_slot,
            appended_rows=self.appended,
            chunk=tile,
            warps=self.config.warps,
            stages=self.config.stages,
            max_chunks=self.max_chunks,
            window=window or 0,
            statistics=int(statistics),
            combine_warps=self.joining,
            pace_kilobytes=PACE if heads.head_dim < PACED_BELOW else 0,
            log2e_over_sqrt_head_dim=math.log2(math.e) / math.sqrt(heads.head_dim),
            sinks=int(sinks),
            log2e=math.log2(math.e),
            **(tree.constants(rows_per_slot) if tree else {}),
            **({"joins": 1} if self.joins else {}),
            POSITIONS=heads.positions,
            shared_bytes=self.config.ring_bytes(heads.head_dim, kv=heads.kv),
        )

    def partial_shapes(self, slots: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the workspace for `slots` slots, float32: unnormalised outputs per chunk; their maxima and sums."""
        rows = slots * self.rows_per_slot * self.heads.heads * self.max_chunks
        return (rows, self.heads.head_dim), (rows, 2)

    def __call__(self, out: Tensor, qkv: Tensor, rows: Rows, *groups: object, **operands: Any) -> None:
        """`rows`: the query rows. Others are operands of `attention.cu`, or attributes of `groups` of these names:
        `LayerPages`; a `Workspace`; `cosine` and `sine`, `block_table`, `length` and `offset`. Where a launcher is made
        for them: `counts`; `statistics` int32 [4], which STATISTICS are added to; `sinks` bfloat16 [N]; `head_norms`
        bfloat16 [2, D], weights of the norms of queries and of keys; `NodeTensors`; `kept` int32 [S, G, retrieval], the
        retrieved blocks, and `dropped` int32 [S], how many positions are left out; `finished`, where chunks are joined
        here, int32 [S · G · tiles], zero before and after. Raises ValueError for what this launcher was not made for.
        """
        if self.joins:
            self.launch(None, rows, *groups, out=out, qkv=qkv, **operands)
            return
        joined = self.operands_of("attention_combine").names - self.operands_of("attention").names
        self.launch(None, rows, *groups, qkv=qkv, **{n: value for n, value in operands.items() if n not in joined})
        self.join(out, rows, *groups, **operands)

    def join(self, out: Tensor, rows: Rows, *groups: object, **operands: Any) -> None:
        """Join the chunks of each row. Arguments are as those of a call, of which it is the second half."""
        name = "attention_combine"
        own = {n: value for n, value in operands.items() if n in self.operands_of(name).names}
        # Without shared memory it finds room beside attention, and what comes after it may start early.
        self.launch(None, rows, *groups, function=name, shared_bytes=0, out=out, **own)

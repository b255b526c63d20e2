"""Over which part of the cache a step verifies, and behind which rows: whole, whole with a new choice, or a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import TreeNodes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.partial.launchers import AcceptReplayed, WideAttention
from specgate.backends.eagle3.cupy.kernels.rows.launchers import Replay
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, AcceptForced
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeSettle
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, partial_attention
from specgate.backends.eagle3.cupy.memory.model import Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.layer import Attend, RowPositions
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN, Kind, Selection

Settle = Callable[[Buffers, Rows], None]
T = TypeVar("T")


def present(part: T | None) -> T:
    """Return a part that sizes with this verification have."""
    assert part is not None
    return part


def settle_path(settle: TreeSettle, b: Buffers, rows: Rows) -> None:
    tree, pages = present(b.tree), b.target.pages
    groups = rows, b.slots, b.kv, b.target, b.draft, tree
    slots = {} if tree.scales is None else {"scaled_slots": tree.scales.shape[1]}
    settle(*groups, k_pages=pages.k, v_pages=pages.v, scales=pages.scales, node_scales=tree.scales, **slots)


class Verification:
    """Verification over the whole cache: of the newest token, of a chain behind it, or of a tree."""

    replay: Replay | None = None
    """Rows that were verified in part before, and are run again."""

    def __init__(self, target: Target, sizes: Sizes, k: int) -> None:
        """`k`: drafts in a row, 0 for the baseline; or levels of the sizes' tree, where that has branches."""
        self.target, self.sizes, self.k = target, sizes, k
        self.rows = self.reserved = sizes.rows_of(k)
        """Rows per slot, and positions per slot that need blocks."""
        self.nodes: TreeNodes | None = None
        if sizes.tree is not None and sizes.tree_of(k) is not None:
            self.nodes = TreeNodes(0, sizes.max_rows, sizes.tree.depth)
        if sizes.partial is None:
            self.reserved = sizes.reserved_of(k)

    def attention(self, window: int | None) -> Attend | None:
        """Return what attends in layers with this window; None: what does so in any step."""
        return None

    def begins(self, b: Buffers) -> Tensor:
        """Return the position int32 [S] of each slot's first row."""
        return b.slots.length

    def positions(self, b: Buffers) -> RowPositions:
        nodes = b.tree.in_target if self.nodes and b.tree else None
        return RowPositions(self.target.rope, b.kv, b.slots.length, nodes=nodes, step=b.slots.step)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher of what follows the last layer, in stream order."""
        return {}

    def finish(self, b: Buffers, rows: Rows) -> None:
        """Launch what follows the last layer."""

    def settling(self, width: int) -> tuple[Kernel, Settle]:
        """Return the launcher that ends a step, and the call of it: that leaves how many drafts of each slot are
        accepted, and the target's tokens behind them. `width`: of a row of the draft's features.

        Accepted is the beginning of a chain on which drafts and choices agree, or as much of it as a tape says; of a
        tree the longest such path, which is put where a chain would be.
        """
        sizes, g, per = self.sizes, self.target.geometry, self.rows
        if self.nodes:
            assert sizes.tree is not None
            depth = sizes.tree.depth
            path = TreeSettle(sizes.heads(g), g.layers, sizes.blocks, width, per, depth, sizes.max_rows)
            return path, partial(settle_path, path)
        if sizes.forced and self.k:
            taped = AcceptForced(sizes.slots, per, sizes.max_rows)
            return taped, lambda b, rows: taped(rows, b.slots, b.target, b)
        accept = Accept(per, sizes.max_rows)
        return accept, lambda b, rows: accept(rows, b.slots, b.target)


class Refresh(Verification):
    """Verification of all tokens that partial ones may have emitted, and of a chain; it chooses what the next see."""

    def __init__(self, target: Target, sizes: Sizes, k: int) -> None:
        super().__init__(target, sizes, k)
        self.rows, self.reserved = sizes.full_rows_of(k), sizes.reserved_of(k)
        self.replay = Replay(k, sizes.positions)
        self.selection = Selection(sizes.heads(target.geometry), sizes, k)

    def attention(self, window: int | None) -> Attend | None:
        sizes, g = self.sizes, self.target.geometry
        if window is not None:
            return None  # it reads little, and retrieves nothing
        return WideAttention(sizes.heads(g), self.rows, sizes.max_rows, sizes.fmha, sinks=g.sinks)

    def begins(self, b: Buffers) -> Tensor:
        return present(b.partial).verified

    def positions(self, b: Buffers) -> RowPositions:
        of = self.target.rope, b.kv, b.slots.length
        return RowPositions(*of, part=b.partial, step=b.slots.step, first=self.begins(b))

    def kernels(self) -> Mapping[str, Kernel]:
        return self.selection.kernels()

    def finish(self, b: Buffers, rows: Rows) -> None:
        self.selection(b, rows)

    def settling(self, width: int) -> tuple[Kernel, Settle]:
        """Accepted is the beginning of the chain behind the unseen tokens, of which those are counted that this pass
        would not have chosen.
        """
        sizes = self.sizes
        accept = AcceptReplayed(sizes.kept_of(self.k), self.k, self.rows, sizes.max_rows, sizes.positions)
        return accept, lambda b, rows: accept(rows, b.slots, b.target, b.partial)


class Part(Verification):
    """Verification of a chain over a part of the cache."""

    def attention(self, window: int | None) -> Attend | None:
        return None if window is not None else partial_attention(self.target.geometry, self.sizes, self.k)

    def positions(self, b: Buffers) -> RowPositions:
        return RowPositions(self.target.rope, b.kv, b.slots.length, part=b.partial, step=b.slots.step)


VERIFICATIONS: Final[Mapping[Kind, type[Verification]]] = {PLAIN: Verification, FULL: Refresh, PARTIAL: Part}

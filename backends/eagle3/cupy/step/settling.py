"""How many drafts of each slot are accepted, and what that leaves where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.partial.launchers import AcceptReplayed
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, AcceptForced
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeSettle
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Settling:
    """What ends a verification, with its launcher. Calling it leaves how many drafts of each slot are accepted, and the
    target's tokens behind them.
    """

    kernel: Kernel
    call: Callable[[Buffers, Rows], None]

    def __call__(self, b: Buffers, rows: Rows) -> None:
        self.call(b, rows)


def chain_start(sizes: Sizes, rows_per_slot: int) -> Settling:
    """Accept the beginning of a chain on which drafts and choices agree."""
    accept = Accept(rows_per_slot, sizes.max_rows)
    return Settling(accept, lambda b, rows: accept(b.target.choices, b.slots, rows))


def along_tape(sizes: Sizes, rows_per_slot: int) -> Settling:
    """Accept as much of a chain as a tape says."""
    accept = AcceptForced(sizes.slots, rows_per_slot, sizes.max_rows)

    def call(b: Buffers, rows: Rows) -> None:
        assert b.forced is not None
        accept(b.target.choices, b.forced, b.slots, rows)

    return Settling(accept, call)


def behind_unseen(sizes: Sizes, rows_per_slot: int, k: int) -> Settling:
    """Accept the beginning of a chain behind tokens that were verified in part, and count those that are overruled."""
    accept = AcceptReplayed(sizes.kept_of(k), k, rows_per_slot, sizes.max_rows, sizes.positions)

    def call(b: Buffers, rows: Rows) -> None:
        assert b.partial is not None
        p = b.partial
        accept(b.target.choices, p.verified, p.dropped, p.bounded, p.overruled, b.slots, rows)

    return Settling(accept, call)


def tree_path(target: Target, sizes: Sizes, rows_per_slot: int, width: int) -> Settling:
    """Accept the longest path of a tree on which drafts and choices agree, and put it where a chain would be. `width`:
    of a row of the draft's features.
    """
    assert sizes.tree is not None
    g, depth = target.geometry, sizes.tree.depth
    settle = TreeSettle(sizes.heads(g), g.layers, sizes.blocks, width, rows_per_slot, depth, sizes.max_rows)

    def call(b: Buffers, rows: Rows) -> None:
        assert b.tree is not None and b.draft is not None
        tree, pages = b.tree, b.target.pages
        settle(
            *(pages.k, pages.v, b.draft.features, tree.path, tree.readers, b.target.choices),
            *(tree.masks, tree.parents, b.kv.block_table, b.slots, rows),
            (pages.scales, tree.scales),
        )

    return Settling(settle, call)

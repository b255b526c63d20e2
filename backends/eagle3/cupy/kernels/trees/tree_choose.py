"""Launches `tree_choose.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots
from specgate.backends.eagle3.cupy.kernels.trees.pool import Pool
from specgate.backends.eagle3.cupy.kernels.trees.tree_top import parts_of

THREADS: Final = 512


class TreeChoose(Kernel):
    """The tree of every active slot: tokens, parents and masks of the `nodes` likeliest candidates of `levels` levels.

    The draft ran on the last level's sources: one row per slot in a tree of one level, else `width`.
    """

    def __init__(
        self, draft_vocab: int, *, nodes: int, levels: int, width: int, pool: int, forest: int, max_rows: int
    ) -> None:
        """`pool`, `forest`: candidates and rows of the largest tree of the engine, which has `max_rows` rows."""
        self.draft_vocab, self.parts, self.width = draft_vocab, parts_of(draft_vocab), width
        self.sources, self.pool, self.forest, self.max_rows = 1 if levels == 1 else width, pool, forest, max_rows
        super().__init__(
            "tree_choose",
            draft_vocab=draft_vocab,
            parts=self.parts,
            top=width,
            sources=self.sources,
            levels=levels,
            nodes=nodes,
            begin=0 if levels == 1 else width + (levels - 2) * width**2,
            pool=pool,
            forest=forest,
            stride=max_rows,
            max_rows=max_rows,
            threads=THREADS,
        )

    def __call__(
        self,
        masks: Tensor,
        parents: Tensor,
        candidates: Tensor,
        sums: Tensor,
        pool: Pool,
        target_ids: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        """`rows`: those that the draft ran on; `masks` int64 and `parents` int32 [S, T], as `TreeSettle` reads them."""
        if rows.rows_per_slot != self.sources:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for a launcher of {self.sources}")
        operands = {"pool": pool.candidates, "candidates": candidates, "sums": sums, "target_ids": target_ids}
        self.launch((rows.slots,), pool, slots, rows, parents=parents, masks=masks, **operands)

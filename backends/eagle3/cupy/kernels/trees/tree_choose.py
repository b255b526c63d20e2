"""Launches `tree_choose.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots
from specgate.backends.eagle3.cupy.kernels.trees.pool import Pool, check_pool
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

    @announced
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
        if rows.per_slot != self.sources:
            raise ValueError(f"{rows.per_slot} rows per slot for a launcher of {self.sources}")
        expect("masks", masks, (rows.slots, self.max_rows), torch.int64)
        expect("parents", parents, (rows.slots, self.max_rows), torch.int32)
        expect("candidates", candidates, (rows.most * self.parts * self.width,), torch.int64)
        expect("sums", sums, (rows.most * self.parts, 2), torch.float32)
        expect("target_ids", target_ids, (self.draft_vocab,), torch.int32)
        check_pool(pool, rows.slots, self.pool, self.forest)
        slots.check(rows.slots, self.max_rows)
        self.launch(
            "tree_choose",
            (rows.slots,),
            (THREADS,),
            {
                "drafts": slots.drafts,
                "parents": parents,
                "masks": masks,
                "pool": pool.candidates,
                "fault": slots.fault,
                "candidates": candidates,
                "sums": sums,
                "entries": pool.entries,
                "scores": pool.scores,
                "target_ids": target_ids,
                "active": rows.active,
                "active_count": rows.active_count,
            },
        )

"""Launches `tree_grow.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.draft_input import InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots
from specgate.backends.eagle3.cupy.kernels.trees.pool import Pool
from specgate.backends.eagle3.cupy.kernels.trees.tree_top import parts_of

THREADS: Final = 512


class TreeGrow(Kernel):
    """Choice of a level's candidates that the draft runs on next, the `width` likeliest of every active slot, and its
    input.

    The draft ran on one row per slot at level 1, and on `width` below that. `out` (bfloat16 [S · width, 2H]) and
    `next_stream` (float32 [S · width, H]) are as in `TreeToken`.
    """

    def __init__(
        self,
        hidden: int,
        draft_vocab: int,
        *,
        norm_output: bool,
        norm_before_residual: bool,
        width: int,
        level: int,
        pool: int,
        forest: int,
    ) -> None:
        """`level`: whose candidates these are, from 1 on. `pool`, `forest`: candidates and rows of the largest tree."""
        self.hidden, self.draft_vocab, self.parts = hidden, draft_vocab, parts_of(draft_vocab)
        self.width, self.sources, self.pool, self.forest = width, 1 if level == 1 else width, pool, forest
        super().__init__(
            "tree_grow",
            hidden=hidden,
            draft_vocab=draft_vocab,
            norm_output=int(norm_output),
            norm_before_residual=int(norm_before_residual),
            parts=self.parts,
            top=width,
            sources=self.sources,
            rows=width,
            begin=0 if level == 1 else width + (level - 2) * width**2,
            first=(level - 1) * width,
            pool=pool,
            forest=forest,
            threads=THREADS,
        )

    def __call__(
        self,
        out: Tensor,
        next_stream: Tensor,
        stream: Tensor,
        candidates: Tensor,
        sums: Tensor,
        pool: Pool,
        masks: Tensor,
        target_ids: Tensor,
        pre_norm: PreNormRows,
        weights: InputWeights,
        slots: Slots,
        rows: Rows,
        *,
        eps: float,
    ) -> None:
        """`rows`: those that the draft ran on; `masks`: of the forest, int64 [S, Q]."""
        if rows.rows_per_slot != self.sources:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for a launcher of {self.sources}")
        self.launch(
            (rows.slots * self.width,),
            *(pool, pre_norm, weights, slots, rows),
            pool=pool.candidates,
            masks=masks,
            input=out,
            next_stream=next_stream,
            stream=stream,
            candidates=candidates,
            sums=sums,
            target_ids=target_ids,
            eps=eps,
        )

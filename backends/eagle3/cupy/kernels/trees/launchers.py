"""Launchers of the kernels of draft trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SWITCHES, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


@dataclass(frozen=True, slots=True)
class Pool:
    """For S slots, P candidates of all levels, and Q rows that the draft runs on, the *forest*.

    `candidates` int32 [S, P, 2]: the probability of the path to each, as bits that compare as it does, and its column
    of the draft's logits. Of the forest's rows [S, Q]: `entries` int32, each one's candidate; `scores` float32, the
    logarithm of its path's probability.
    """

    candidates: Tensor
    entries: Tensor
    scores: Tensor

    @classmethod
    def allocate(cls, slots: int, candidates: int, forest: int, device: torch.device | str) -> Pool:
        return cls(
            candidates=torch.zeros(slots, candidates, 2, dtype=torch.int32, device=device),
            entries=torch.zeros(slots, forest, dtype=torch.int32, device=device),
            scores=torch.zeros(slots, forest, device=device),
        )


TREE_TOKEN_THREADS: Final = 512


class TreeToken(Kernel):
    """The tokens of nodes `first` … of every active slot, a level of a tree; then the input of the draft's next level.

    The draft ran on `sources` rows per slot, and runs on `rows` of the level's nodes next. Their input goes to `out`
    (bfloat16 [S · rows, 2H]) and their stream to `next_stream` (float32 [S · rows, H]); their hidden state is that of
    their parent's row in `stream`, or, in heads that feed their normed output back, what `pre_norm` becomes.
    """

    def __init__(
        self,
        hidden: int,
        draft_vocab: int,
        *,
        norm_output: bool,
        norm_before_residual: bool,
        max_rows: int,
        top: int,
        first: int,
        nodes: int,
        sources: int,
        rows: int,
    ) -> None:
        """`top`: how many tokens behind a source row are asked for at most. Raises ValueError where there are fewer."""
        if not 0 < top <= draft_vocab:
            raise ValueError(f"the {top} likeliest of {draft_vocab} tokens")
        self.hidden, self.draft_vocab = hidden, draft_vocab
        self.nodes, self.sources, self.rows, self.last = nodes, sources, rows, first + nodes - 1
        super().__init__(
            "tree_token",
            hidden=hidden,
            draft_vocab=draft_vocab,
            norm_output=int(norm_output),
            norm_before_residual=int(norm_before_residual),
            max_rows=max_rows,
            top=top,
            first_node=first,
            nodes=nodes,
            sources=sources,
            rows=rows,
            threads=TREE_TOKEN_THREADS,
        )

    def __call__(
        self,
        out: Tensor,
        next_stream: Tensor,
        stream: Tensor,
        logits: Tensor,
        maxima: Tensor,
        nodes: Tensor,
        target_ids: Tensor,
        pre_norm: PreNormRows,
        weights: InputWeights,
        slots: Slots,
        rows: Rows,
        *,
        eps: float,
    ) -> None:
        """`rows`: those that the draft ran on; `logits` float32 [R, V] and `maxima` int32 [R, maxima_of(V)] of these,
        as the LM head leaves them; `nodes` int32 [N, 3]: see `tree_token.cu`.
        """
        if rows.rows_per_slot != self.sources:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for a launcher of {self.sources}")
        self.launch(
            (rows.slots * self.nodes,),
            *(pre_norm, weights, slots, rows),
            input=out,
            next_stream=next_stream,
            stream=stream,
            logits=logits,
            maxima=maxima,
            nodes=nodes,
            target_ids=target_ids,
            eps=eps,
        )


TREE_TOP_THREADS: Final = 256
COLUMNS_PER_PART: Final = 4096
"""Columns that a block takes: enough blocks to read a few rows fast, and few enough lists to join."""
MOST_PARTS: Final = 32
"""A lane of a warp joins one list."""


def parts_of(columns: int) -> int:
    """Return the number of blocks that share a row."""
    return min(MOST_PARTS, -(-columns // COLUMNS_PER_PART))


class TreeTop(Kernel):
    """The `top` largest of each row of logits, float32 [R, V], in parts: int64 [R, parts, top], packed as choices.

    Of equal logits the lower column comes first. NaN and infinity come before every number. Also what a softmax needs
    of each part: float32 [R, parts, 2], its largest logit and the sum of the powers of e below that.
    """

    def __init__(self, columns: int, top: int) -> None:
        """Raises ValueError for more tokens than there are columns."""
        if not 0 < top <= columns:
            raise ValueError(f"the {top} largest of {columns} columns")
        self.columns, self.top, self.parts = columns, top, parts_of(columns)
        super().__init__(
            "tree_top",
            columns=columns,
            wide=1 if columns % 4 else 4,
            top=top,
            parts=self.parts,
            threads=TREE_TOP_THREADS,
        )

    def __call__(self, candidates: Tensor, sums: Tensor, logits: Tensor, rows: Rows) -> None:
        """`candidates`: int64, at least R · parts · top; `sums`: float32, at least [R · parts, 2]."""
        self.launch((self.parts, rows.most), rows, candidates=candidates, sums=sums, logits=logits)


TREE_GROW_THREADS: Final = 512


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
            threads=TREE_GROW_THREADS,
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


TREE_CHOOSE_THREADS: Final = 512


class TreeChoose(Kernel):
    """The tree of every active slot: tokens, parents and masks of the `nodes` likeliest candidates of `levels` levels.

    The draft ran on the last level's sources: one row per slot in a tree of one level, else `width`.
    """

    def __init__(
        self, draft_vocab: int, *, nodes: int, levels: int, width: int, pool: int, forest: int, max_rows: int
    ) -> None:
        """`pool`, `forest`: candidates and rows of the largest tree of the engine, which has `max_rows` rows."""
        self.draft_vocab, self.parts, self.width, self.nodes = draft_vocab, parts_of(draft_vocab), width, nodes
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
            threads=TREE_CHOOSE_THREADS,
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


class TreeSettle(Kernel):
    """Choice of the path of each slot's tree that the target agrees with: the longest whose tokens are its own choices
    (int64 [R], cleared again). Moves what is kept for its nodes to where a chain has it: keys and values in all layers,
    captured features in the first rows. The draft's cache needs no move: its extension computes those rows anew.

    A mask that is not the tree's sets Fault.MASK_INTEGRITY.
    """

    def __init__(
        self, heads: Heads, layers: int, blocks: int, width: int, rows_per_slot: int, levels: int, max_rows: int
    ) -> None:
        """`blocks`: of the cache in all; `width`: of a row of features. `max_rows`, `levels`: of the largest tree of
        the engine, of which this one's rows are the first.
        """
        self.heads, self.layers, self.blocks, self.width = heads, layers, blocks, width
        self.rows_per_slot, self.levels, self.max_rows = rows_per_slot, levels, max_rows
        numbers = 16 // heads.cached.itemsize
        super().__init__(
            "tree_settle",
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            block=BLOCK,
            max_blocks=heads.max_blocks,
            **SWITCHES[heads.kv],
            layers=layers,
            blocks=blocks,
            width=width,
            rows=rows_per_slot,
            levels=levels,
            max_rows=max_rows,
            threads=heads.head_dim,
            shared_bytes=heads.head_dim * 16 * ((rows_per_slot + 2 * numbers - 2) // numbers),
        )

    def __call__(
        self,
        k_pages: Tensor,
        v_pages: Tensor,
        features: Tensor,
        path: Tensor,
        readers: Tensor,
        choices: Tensor,
        masks: Tensor,
        parents: Tensor,
        block_table: Tensor,
        slots: Slots,
        rows: Rows,
        scales: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:
        """`path` int32 [S, levels + 1]: becomes the accepted nodes, root first. `readers` int32 [S], zero. `masks`
        int64 and `parents` int32 [S, T]. `scales`: those of all layers of a cache in E4M3, and float32 [layers, S, G,
        T, 2], those that the nodes' paths make.
        """
        h = self.heads
        of_features = -(-self.width // (h.head_dim * 8))
        self.launch(
            (self.layers * h.kv_heads + of_features, rows.slots),
            slots,
            rows,
            k_pages=k_pages,
            v_pages=v_pages,
            features=features,
            path=path,
            readers=readers,
            choices=choices,
            masks=masks,
            parents=parents,
            block_table=block_table,
            scales=scales[0],
            node_scales=scales[1],
            **({} if scales[1] is None else {"scaled_slots": scales[1].shape[1]}),
        )

"""Launches `tree_token.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows, maxima_of
from specgate.backends.eagle3.cupy.kernels.rows.draft_input import InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

THREADS: Final = 512


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
            threads=THREADS,
        )

    @announced
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
        if rows.per_slot != self.sources:
            raise ValueError(f"{rows.per_slot} rows per slot for a launcher of {self.sources}")
        expect("logits", logits, (rows.most, self.draft_vocab), torch.float32)
        expect("maxima", maxima, (rows.most, maxima_of(self.draft_vocab)), torch.int32)
        expect("stream", stream, (rows.most, self.hidden), torch.float32)
        expect("next_stream", next_stream, (rows.slots * self.rows, self.hidden), torch.float32)
        expect("out", out, (rows.slots * self.rows, 2 * self.hidden), torch.bfloat16)
        expect("nodes", nodes, (self.last, 3), torch.int32)
        expect("target_ids", target_ids, (self.draft_vocab,), torch.int32)
        pre_norm.check(rows.most, self.hidden)
        w = weights
        self.launch(
            "tree_token",
            (rows.slots * self.nodes,),
            (THREADS,),
            {
                "drafts": slots.drafts,
                "input": out,
                "next_stream": next_stream,
                "fault": slots.fault,
                "stream": stream,
                "logits": logits,
                "maxima": maxima,
                "nodes": nodes,
                "target_ids": target_ids,
                "normed": pre_norm.rows,
                "squares": pre_norm.squares,
                "embedding": w.embedding,
                "embedding_norm": w.embedding_norm,
                "feature_norm": w.feature_norm,
                "active": rows.active,
                "active_count": rows.active_count,
                "eps": eps,
            },
        )

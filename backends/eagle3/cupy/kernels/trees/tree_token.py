"""Launches `tree_token.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
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

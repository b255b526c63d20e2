"""Launches `draft_token.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.draft_input import InputWeights
from specgate.backends.cupy_eagle3.kernels.loader import Kernel, expect
from specgate.backends.cupy_eagle3.kernels.matmul_rows import Normed
from specgate.backends.cupy_eagle3.kernels.slots import Rows, Slots

THREADS = 512


class DraftToken(Kernel):
    """Draft token `index` of every active slot, as a target id; then the next step's input.

    `choices` int64 [S], as the LM head leaves them, cleared again; `target_ids` int32 [W]. With `out` (bfloat16
    [S, 2H]) the row of the next draft step is written too, its hidden state being `stream` (float32 [S, H]) or, for
    heads that feed their normed output back, `normed`.
    """

    def __init__(
        self, hidden: int, draft_vocab: int, *, norm_output: bool, norm_before_residual: bool, max_rows: int
    ) -> None:
        super().__init__(
            "draft_token",
            hidden=hidden,
            draft_vocab=draft_vocab,
            norm_output=int(norm_output),
            norm_before_residual=int(norm_before_residual),
            max_rows=max_rows,
            threads=THREADS,
        )
        self.hidden, self.draft_vocab = hidden, draft_vocab

    def __call__(
        self,
        out: Tensor | None,
        stream: Tensor,
        choices: Tensor,
        target_ids: Tensor,
        normed: Normed,
        weights: InputWeights,
        slots: Slots,
        rows: Rows,
        *,
        index: int,
        eps: float,
    ) -> None:
        expect("choices", choices, (rows.slots,), torch.int64)
        expect("stream", stream, (rows.slots, self.hidden), torch.float32)
        normed.check(rows.slots, self.hidden)
        expect("target_ids", target_ids, (self.draft_vocab,), torch.int32)
        if out is not None:
            expect("out", out, (rows.slots, 2 * self.hidden), torch.bfloat16)
        w = weights
        self.launch(
            "draft_token",
            (rows.slots,),
            (THREADS,),
            {
                "drafts": slots.drafts,
                "input": out,
                "stream": stream,
                "choices": choices,
                "fault": slots.fault,
                "target_ids": target_ids,
                "normed": normed.rows,
                "squares": normed.squares,
                "embedding": w.embedding,
                "embedding_norm": w.embedding_norm,
                "feature_norm": w.feature_norm,
                "active": rows.active,
                "active_count": rows.active_count,
                "index": index,
                "eps": eps,
            },
        )

"""Launches `draft_token.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.draft_input import InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

THREADS = 512


class DraftToken(Kernel):
    """Draft token `index` of every active slot, as an id of the target; then the input of the draft's next step.

    `choices` int64 [S] are as the LM head leaves them, and cleared again; `target_ids` int32 [W]. With `out` (bfloat16
    [S, 2H]) the input of the next draft step is written, too. Its hidden state is `stream` (float32 [S, H]), or, in
    heads that feed their normed output back, what `pre_norm` becomes.
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
        pre_norm: PreNormRows,
        weights: InputWeights,
        slots: Slots,
        rows: Rows,
        *,
        index: int,
        eps: float,
    ) -> None:
        operands = {"input": out, "stream": stream, "choices": choices, "target_ids": target_ids}
        self.launch((rows.slots,), pre_norm, weights, slots, rows, index=index, eps=eps, **operands)

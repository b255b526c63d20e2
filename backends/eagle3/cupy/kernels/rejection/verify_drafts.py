"""Launches `verify_drafts.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.rejection.drafted import DraftedRows
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.sampling.draw_rows import signed
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class VerifyDrafts(Kernel):
    """Puts into `choices` (int64 [R]) what verifying by rejection emits: accepted draft tokens in their rows, and what
    is drawn in the row after them. That is never the draft token of its row, so that `Accept` finds as many.
    """

    def __init__(self, drafted: DraftedRows, temperature: float, *, filtered: bool) -> None:
        """`filtered`: the target's tokens are those that `cuts` leaves."""
        self.drafted, self.division, self.filtered = drafted, Division(drafted.vocab), filtered
        super().__init__(
            "verify_drafts",
            temperature=float(temperature),
            filtered=int(filtered),
            **drafted.constants,
            **self.division.constants,
        )

    @announced
    def __call__(
        self,
        choices: Tensor,
        best: Tensor,
        finished: Tensor,
        logits: Tensor,
        cuts: Tensor | None,
        draft_logits: Tensor,
        sums: Tensor,
        draft_columns: Tensor,
        requests: Tensor,
        slots: Slots,
        rows: Rows,
        *,
        seed: int,
    ) -> None:
        """`sums` float64 [S · 2K] as `SumRows` leaves them. `requests` int64 [S]: who the slots' requests are. `best`
        int64 [S] and `finished` int32 [S] are zero before and after. Others: `DraftedRows.check`. Raises ValueError for
        operands that this launcher was not made for.
        """
        d = self.drafted
        d.check(logits, choices, cuts, draft_logits, draft_columns, slots, rows, filtered=self.filtered)
        expect("best", best, (rows.slots,), torch.int64)
        expect("finished", finished, (rows.slots,), torch.int32)
        expect("sums", sums, (rows.slots * 2 * d.drafts,), torch.float64)
        expect("requests", requests, (d.slots,), torch.int64)
        self.launch(
            "verify_drafts",
            (self.division.blocks, rows.slots),
            (self.division.threads,),
            {
                "choices": choices,
                "best": best,
                "finished": finished,
                "logits": logits,
                "cuts": cuts,
                "draft_logits": draft_logits,
                "sums": sums,
                "draft_columns": draft_columns,
                "drafts": slots.drafts,
                "requests": requests,
                "length": slots.length,
                "active": rows.active,
                "active_count": rows.active_count,
                "seed_low": signed(seed),
                "seed_high": signed(seed >> 32),
            },
        )

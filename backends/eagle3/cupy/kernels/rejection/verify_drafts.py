"""Launches `verify_drafts.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
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
        self.drafted.check(rows)
        self.launch(
            (self.division.blocks, rows.slots),
            slots,
            rows,
            choices=choices,
            best=best,
            finished=finished,
            logits=logits,
            cuts=cuts,
            draft_logits=draft_logits,
            sums=sums,
            draft_columns=draft_columns,
            requests=requests,
            seed_low=signed(seed),
            seed_high=signed(seed >> 32),
        )

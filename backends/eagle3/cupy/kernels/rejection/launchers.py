"""Launchers of the kernels of rejection sampling."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import Division, signed
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """`drafts` draft tokens per slot, drawn from `draft_vocab` columns and judged by rows of `vocab`, in an engine of
    `slots` slots with up to `max_rows` rows each.
    """

    vocab: int
    draft_vocab: int
    drafts: int
    slots: int
    max_rows: int

    @property
    def constants(self) -> dict[str, int]:
        """But for `vocab`, which the division of a row into blocks tells."""
        return {
            "draft_vocab": self.draft_vocab,
            "drafts": self.drafts,
            "slots": self.slots,
            "max_rows": self.max_rows,
        }

    def check(self, rows: Rows) -> None:
        """Raise ValueError unless there is a row for each draft token and one behind them."""
        if rows.rows_per_slot != self.drafts + 1:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for {self.drafts} draft tokens")


class SumRows(Kernel):
    """Leaves in `sums` (float64 [S · 2K]) what the weights of a row sum to: of each slot, of its K rows of the target
    that judge a draft token, and of the K rows of the draft that these were drawn from.
    """

    def __init__(self, drafted: DraftedRows, temperature: float, *, filtered: bool) -> None:
        """`filtered`: the target's rows are summed over what `cuts` leaves."""
        self.drafted, self.division, self.filtered = drafted, Division(drafted.vocab), filtered
        super().__init__(
            "sum_rows",
            temperature=float(temperature),
            filtered=int(filtered),
            **drafted.constants,
            **self.division.constants,
        )

    def __call__(
        self,
        sums: Tensor,
        partial: Tensor,
        finished: Tensor,
        logits: Tensor,
        choices: Tensor,
        cuts: Tensor | None,
        draft_logits: Tensor,
        draft_columns: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        """`partial` float64 [S · 2K, blocks]: of blocks. `choices` int64 [R]: the target's greedy ones, which stay.
        Others: `DraftedRows.check`. Raises ValueError for operands that this launcher was not made for.
        """
        self.drafted.check(rows)
        summed = rows.slots * 2 * self.drafted.drafts
        self.launch(
            (self.division.blocks, summed),
            slots,
            rows,
            sums=sums,
            partial=partial,
            finished=finished,
            logits=logits,
            choices=choices,
            cuts=cuts,
            draft_logits=draft_logits,
            draft_columns=draft_columns,
            BLOCKS=self.division.blocks,
        )


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

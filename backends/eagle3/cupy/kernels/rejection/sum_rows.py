"""Launches `sum_rows.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.rejection.drafted import DraftedRows
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


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

"""Launchers of the kernels of rejection sampling."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import Division


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
        of = {"draft_vocab": self.draft_vocab, "drafts": self.drafts, "slots": self.slots, "max_rows": self.max_rows}
        return {**of, **Division(self.vocab).constants}


class SumRows(Kernel):
    """Leaves in `sums` what the weights of a row sum to: of each slot, of its K rows of the target that judge a draft
    token, and of the K rows of the draft that these were drawn from. `partial`: of blocks.

    `filtered`: the target's rows are summed over what `cuts` leaves. Its greedy choices stay.
    """

    drafted: DraftedRows
    temperature: float
    filtered: bool


class VerifyDrafts(Kernel):
    """Puts into `choices` what verifying by rejection emits: accepted draft tokens in their rows, and what is drawn in
    the row after them. That is never the draft token of its row, so that `Accept` finds as many.

    `filtered`: the target's tokens are those that `cuts` leaves. `sums`: as `SumRows` leaves them. `best` and
    `finished` are zero before and after.
    """

    drafted: DraftedRows
    temperature: float
    filtered: bool

"""Verifying the drafts of a step by rejection, between the target's head and the kernel that takes its choices."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows, SumRows, VerifyDrafts
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers, filters
from specgate.contract import Sampling


class Rejection:
    """Leaves choices that `Accept` finds the accepted drafts in, and behind them the token that is drawn.

    What it emits depends on the slot's own rows, request and position alone, to the last bit.
    """

    def __init__(self, sampling: Sampling, drafted: DraftedRows) -> None:
        self.seed, self.filtered = sampling.seed, filters(sampling, drafted.vocab)
        self.sum = SumRows(drafted, sampling.temperature, filtered=self.filtered)
        self.verify = VerifyDrafts(drafted, sampling.temperature, filtered=self.filtered)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order."""
        return {"sum": self.sum, "verify": self.verify}

    def __call__(
        self, logits: Tensor, choices: Tensor, draft_columns: Tensor, b: SamplingBuffers, slots: Slots, rows: Rows
    ) -> None:
        """`choices` int64 [R]: the greedy ones of the target's `logits` float32 [R, V], after bias, penalties and
        filters. `draft_columns` int32 [V]: the draft's column of each token, −1 for none.
        """
        cuts = b.cuts if self.filtered else None
        self.sum(
            *(b.sums, b.partial, b.finished, logits, choices, cuts, b.draft_logits, draft_columns, slots, rows),
        )
        self.verify(
            *(choices, b.best, b.finished, logits, cuts, b.draft_logits, b.sums, draft_columns, b.requests),
            *(slots, rows),
            seed=self.seed,
        )

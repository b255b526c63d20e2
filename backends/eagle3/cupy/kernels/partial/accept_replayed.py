"""Launches `accept_replayed.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept import KeptBlocks
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class AcceptReplayed(Kernel):
    """Decides how many drafts of each slot a full verification accepts, counts what it would not have chosen of the
    tokens that it ran again, and notes that all are verified.
    """

    def __init__(self, kept: KeptBlocks, drafts: int, rows_per_slot: int, max_rows: int, capacity: int) -> None:
        """`rows_per_slot`: with those that are run again; `max_rows`: of `Slots`."""
        self.max_rows = max_rows
        super().__init__(
            "accept_replayed",
            **kept.middle,
            retrieved=kept.retrieval,
            rows=rows_per_slot,
            drafts=drafts,
            max_rows=max_rows,
            capacity=capacity,
        )

    def __call__(
        self,
        choices: Tensor,
        verified: Tensor,
        dropped: Tensor,
        bounded: Tensor,
        overruled: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        counted = {"verified": verified, "dropped": dropped, "bounded": bounded, "overruled": overruled}
        self.launch((rows.slots,), slots, rows, threads=32, choices=choices, **counted)

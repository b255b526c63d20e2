"""Launches `accept.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.chains import Chains
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class Accept(Kernel):
    """How many drafts of each slot the target agrees with: the longest prefix that equals its choices (int64 [R]).

    The choices are cleared again.
    """

    def __init__(self, rows_per_slot: int, max_rows: int, *, ends_early: int = 0) -> None:
        """`ends_early`: where chains do, the slots of the engine; otherwise 0."""
        early = {"ends_early": 1, "slots": ends_early} if ends_early else {}
        super().__init__("accept", rows=rows_per_slot, max_rows=max_rows, **early)
        self.max_rows, self.ends_early = max_rows, ends_early > 0

    @announced
    def __call__(self, choices: Tensor, slots: Slots, rows: Rows, chains: Chains | None = None) -> None:
        """`chains`: how many drafts there are of each slot, and their log; None: as many as rows behind the first.

        Raises ValueError where this launcher was made for the other case.
        """
        if (chains is not None) != self.ends_early:
            raise ValueError(f"made for chains that end early: {self.ends_early}")
        early = {} if chains is None else {"chain_length_log": chains.length_log, "chain_length": chains.length}
        expect("choices", choices, (rows.most,), torch.int64)
        slots.check(rows.slots, self.max_rows)
        self.launch(
            "accept",
            (1,),
            (rows.slots,),
            {
                "accepted": slots.accepted,
                "target_tokens": slots.target_tokens,
                "choices": choices,
                "fault": slots.fault,
                "drafts": slots.drafts,
                "active": rows.active,
                "active_count": rows.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
                **early,
            },
        )

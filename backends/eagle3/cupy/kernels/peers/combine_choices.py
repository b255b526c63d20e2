"""Launches `combine_choices.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.peers.mailboxes import LIMIT_MS, Mailboxes
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class CombineChoices(Kernel):
    """The best of all ranks' choices (int64 [R], packed as in `argmax.cuh`), each from its own part of the vocabulary.

    What a rank leaves has token ids. Ranks that read other tokens, or at other positions, end the run.
    """

    def __init__(self, part: int, rows_per_slot: int, rows: int, slot_rows: int, ranks: int, max_rows: int) -> None:
        """`part`: columns of a rank's LM head; `rows`: the most of this launcher; `slot_rows`: of a slot, in an
        engine's widest step; `max_rows`: the most rows that mailboxes have room for.
        """
        self.rows, self.slot_rows, self.ranks = rows, slot_rows, ranks
        self.threads = -(-rows // 32) * 32
        super().__init__(
            "combine_choices",
            part=part,
            rows=rows_per_slot,
            slot_rows=slot_rows,
            ranks=ranks,
            max_rows=max_rows,
            threads=self.threads,
            limit_ms=LIMIT_MS,
        )

    @announced
    def __call__(self, choices: Tensor, mailboxes: Mailboxes, slots: Slots, rows: Rows) -> None:
        if rows.most > self.rows or mailboxes.ranks != self.ranks:
            raise ValueError(f"{rows.most} rows of {mailboxes.ranks} ranks: made for {self.rows} of {self.ranks}")
        expect("choices", choices, (rows.most,), torch.int64)
        slots.check(rows.slots, self.slot_rows)
        self.launch(
            "combine_choices",
            (1,),
            (self.threads,),
            {
                "choices": choices,
                "exchanges": mailboxes.choice_count,
                **mailboxes.arguments(mailboxes.choices),
                "fault": mailboxes.fault,
                "active_count": rows.active_count,
                "length": slots.length,
                "last_token": slots.last_token,
                "drafts": slots.drafts,
                "active": rows.active,
                "rank": mailboxes.rank,
            },
        )

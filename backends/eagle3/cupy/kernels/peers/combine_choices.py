"""Launches `combine_choices.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
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

    def __call__(self, choices: Tensor, mailboxes: Mailboxes, slots: Slots, rows: Rows) -> None:
        mailboxes.check(rows, self.rows, self.ranks)
        inboxes = mailboxes.arguments(mailboxes.choices)
        self.launch((1,), mailboxes, slots, rows, choices=choices, exchanges=mailboxes.choice_count, **inboxes)

"""Launches `penalise_rows.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class PenaliseRows(Kernel):
    """Puts bias and penalties on every row of `logits` (float32 [R, V]) and makes `choices` (int64 [R]) anew.

    `history` int32 [S, V]: what the slots' texts have, as `history.cuh` has it. `bias` float32 [V], of a launcher that
    is `biased`. `best` int64 [R] and `finished` int32 [R] are zero before and after. Row t of a slot counts the slot's
    first t drafts as emitted.
    """

    def __init__(
        self, vocab: int, max_rows: int, *, repetition: float, presence: float, frequency: float, biased: bool
    ) -> None:
        """`repetition` divides logits of 0 and more and multiplies others; 1 is none. `presence` is subtracted once,
        `frequency` as often as a token was emitted.
        """
        self.vocab, self.max_rows, self.biased, self.division = vocab, max_rows, biased, Division(vocab)
        super().__init__(
            "penalise_rows",
            max_rows=max_rows,
            repetition=float(repetition),
            presence=float(presence),
            frequency=float(frequency),
            biased=int(biased),
            **self.division.constants,
        )

    @announced
    def __call__(
        self,
        logits: Tensor,
        choices: Tensor,
        best: Tensor,
        finished: Tensor,
        history: Tensor,
        slots: Slots,
        rows: Rows,
        *,
        bias: Tensor | None = None,
    ) -> None:
        """Raises ValueError for operands that this launcher was not made for."""
        if (bias is not None) != self.biased:
            raise ValueError(f"made for biased = {self.biased}")
        expect("logits", logits, (rows.most, self.vocab), torch.float32)
        for name, tensor in (("choices", choices), ("best", best)):
            expect(name, tensor, (rows.most,), torch.int64)
        expect("finished", finished, (rows.most,), torch.int32)
        expect("history", history, (rows.slots, self.vocab), torch.int32)
        if bias is not None:
            expect("bias", bias, (self.vocab,), torch.float32)
        slots.check(rows.slots, self.max_rows)
        self.launch(
            "penalise_rows",
            (self.division.blocks, rows.most),
            (self.division.threads,),
            {
                "logits": logits,
                "choices": choices,
                "best": best,
                "finished": finished,
                "history": history,
                "bias": bias,
                "drafts": slots.drafts,
                "active": rows.active,
                "active_count": rows.active_count,
                "rows_per_slot": rows.per_slot,
            },
        )

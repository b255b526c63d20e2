"""Launchers of the kernels of penalties."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class CountTokens(Kernel):
    """Counts in `history` (int32 [S, V]) the newest tokens of every active slot, which are those that the draft has yet
    to extend over.
    """

    def __init__(self, vocab: int, max_rows: int) -> None:
        super().__init__("count_tokens", vocab=vocab, max_rows=max_rows)
        self.vocab, self.max_rows = vocab, max_rows

    def __call__(self, history: Tensor, slots: Slots, rows: Rows) -> None:
        self.launch((rows.slots,), slots, rows, threads=self.max_rows, history=history)


class PenaliseRows(Kernel):
    """Puts bias and penalties on every row of `logits` (float32 [R, V]) and makes `choices` (int64 [R]) anew.

    `history` int32 [S, V]: what the slots' texts have, as `history.cuh` has it. `bias` float32 [V], of a launcher that
    is `biased`. `best` int64 [R] and `finished` int32 [R] are zero before and after. Row t of a slot counts the slot's
    first t drafts as emitted, or its own and those above it, where it is a node of a tree.
    """

    def __init__(
        self,
        vocab: int,
        max_rows: int,
        *,
        repetition: float,
        presence: float,
        frequency: float,
        biased: bool,
        nodes: int = 0,
    ) -> None:
        """`repetition` divides logits of 0 and more and multiplies others; 1 is none. `presence` is subtracted once,
        `frequency` as often as a token was emitted. `nodes`: as of `DrawRows`.
        """
        self.vocab, self.max_rows, self.biased, self.division = vocab, max_rows, biased, Division(vocab)
        super().__init__(
            "penalise_rows",
            max_rows=max_rows,
            repetition=float(repetition),
            presence=float(presence),
            frequency=float(frequency),
            biased=int(biased),
            **({"tree_rows": nodes} if nodes else {}),
            **self.division.constants,
        )

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
        masks: Tensor | None = None,
    ) -> None:
        """`masks` int64 [S, nodes]: a node counts the drafts on its path.

        Raises ValueError for operands that this launcher was not made for.
        """
        operands = {"logits": logits, "choices": choices, "best": best, "finished": finished, "history": history}
        self.launch((self.division.blocks, rows.most), slots, rows, **operands, bias=bias, masks=masks)

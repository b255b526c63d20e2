"""Launchers of the kernels of penalties."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import Divided


class CountTokens(Kernel):
    """Counts in `history` the newest tokens of every active slot, which the draft has yet to extend over."""

    vocab: int
    max_rows: int


class PenaliseRows(Divided):
    """Puts bias and penalties on every row of `logits` and makes `choices` anew.

    `repetition` divides logits of 0 and more and multiplies others; 1 is none. `presence` is subtracted once,
    `frequency` as often as a token was emitted. `biased`: so is a bias added. `tree_rows`: as of `DrawRows`.

    `history`: what the slots' texts have, as `history.cuh` has it. `best` and `finished` are zero before and after. Row
    t of a slot counts the slot's first t drafts as emitted, or those on its path, where it is a node of a tree.
    """

    max_rows: int
    repetition: float
    presence: float
    frequency: float
    biased: bool
    tree_rows: int | None = None

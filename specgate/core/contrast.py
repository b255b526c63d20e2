"""The nouns of `specgate compare`: what differs between two runs, figure by figure, and how each was compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specgate.core import Cell, Run, Verdict


class How(StrEnum):
    """What a ratio of two runs rests on."""

    BY_PROMPT = "paired by prompt"
    """The same prompts in both: what prompts differ in cancels. No time is involved."""
    OTHER_PROMPTS = "on other prompts"
    """No time is involved, but the prompts are."""
    OVER_BASELINES = "each over its own baseline"
    """Blocks paired in time within each run; the two mean ratios are then compared."""
    UNPAIRED = "unpaired in time"
    """Measured one after the other: whatever else changed in between is in the ratio, and in no interval."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a cell of A and of its `partner` in B. `ratio` is B / A; where there is an interval it is the
    geometric mean over pairs, which is not quite `b / a`. `reason_code` says why a ratio or an interval is missing.
    """

    cell: Cell
    partner: Cell
    metric: str
    how: How
    a: float | None
    b: float | None
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    """Pairs, prompts or blocks (of the run that has fewer) behind the interval."""
    same_prompts: bool
    reason_code: str | None = None


@dataclass(frozen=True, slots=True)
class TokenContrast:
    """The tokens of one cell in both runs. `first` is the earliest place at which a sequence of B leaves A's."""

    cell: Cell
    compared_tokens: int
    sequences: int
    differing: int
    first: int | None
    reason_code: str | None = None
    """Why nothing was compared."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """B against A. Cells are named as A names them. `only_a` and `only_b` are cells without a partner."""

    a: Run
    b: Run
    changes: tuple[Change, ...]
    tokens: tuple[TokenContrast, ...]
    only_a: tuple[Cell, ...]
    only_b: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...] = ()

    @property
    def cells(self) -> Sequence[Cell]:
        return [t.cell for t in self.tokens]

"""Data classes of `specgate runs compare --by builds`: how each figure differs between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specgate.contract import BetweenRuns, Cell, Run, Verdict


class How(StrEnum):
    """Basis of the ratio of a figure between two runs."""

    BY_PROMPT = "paired by prompt"
    """Both runs have the same prompts, so differences between prompts cancel. No time is involved."""
    OTHER_PROMPTS = "on other prompts"
    """The runs have different prompts, which the ratio includes. No time is involved."""
    OVER_BASELINES = "each over its own baseline"
    """Blocks are paired in time within each run. The two ratios are then compared, by prompt set. The interval allows
    for what differs between processes.
    """
    UNPAIRED = "unpaired in time"
    """The runs were measured one after the other. The interval allows for what differs between processes. Whatever else
    changed in between is in the ratio, but in no interval.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a cell of A and of its `partner` cell in B.

    `how`: what the ratio rests on.
    `a`, `b`: the figure as each run states it, for example the median over its blocks.
    `ratio`: B / A: `mean_b / mean_a` where there are such means, else `b / a`.
    `reason_code`: why a ratio or an interval is missing.
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
    """Prompts or prompt sets behind the interval: those of the run that has fewer."""
    same_prompts: bool
    reason_code: str | None = None
    mean_a: float | None = None
    mean_b: float | None = None
    """Geometric means over prompt sets, of the logarithms of their blocks; None where the figure is not one of blocks.
    """
    between: tuple[BetweenRuns, BetweenRuns] | None = None
    """What the interval allows for between processes, in A and in B; None where no time is involved."""


@dataclass(frozen=True, slots=True)
class TokenContrast:
    """The tokens of one cell in both runs.

    `sequences`, `differing`: how many sequences were compared, and how many of them differ.
    `first`: the earliest index at which a sequence of B differs from A's.
    """

    cell: Cell
    compared_tokens: int
    sequences: int
    differing: int
    first: int | None
    reason_code: str | None = None
    """Why nothing was compared; None where something was."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Run B against run A. Cells are named as A names them.

    `only_a`, `only_b`: cells without a partner in the other run.
    `policy`: the name of the policy that `verdicts` come from; empty where nothing has been judged.
    """

    a: Run
    b: Run
    changes: tuple[Change, ...]
    tokens: tuple[TokenContrast, ...]
    only_a: tuple[Cell, ...]
    only_b: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...] = ()
    policy: str = ""

    @property
    def cells(self) -> Sequence[Cell]:
        """The cells that both runs have."""
        return [t.cell for t in self.tokens]

    def change(self, cell: Cell, metric: str) -> Change | None:
        """Change of `metric` of `cell`, as A names it; None if neither run has it."""
        return next((c for c in self.changes if c.cell == cell and c.metric == metric), None)

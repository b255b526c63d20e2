"""Data classes of runs laid side by side: by builds, by engines, and over a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specgate.contract import AcceptanceSource, BetweenRuns, Cell, CellResult, Comparison, EngineFacts, Run, Verdict


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
    REPEATED = "repetitions, apart in time"
    """Each side was measured several times. The interval is over repetitions, and allows for what differs between
    processes.
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


@dataclass(frozen=True, slots=True)
class Column:
    """One back end as measured by one run. `label` is its name, with the run's added where several columns have that
    name.
    """

    backend: str
    run: Run
    label: str

    @property
    def engine(self) -> EngineFacts | None:
        """The engine of that back end; None if none was loaded."""
        points = (result.cell.point for result in self.run.cells)
        keys = (point.key for point in points if point.backend == self.backend)
        return next((self.run.engines[key] for key in keys if key in self.run.engines), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the engine itself about how it decodes the pair."""
        return tuple(dict.fromkeys(w for facts in self.run.engines.values() for w in facts.warnings))

    @property
    def cut_short(self) -> str | None:
        """Reason that the run is incomplete; None if it is complete."""
        return next((why.splitlines()[0] for why in self.run.failures.values()), None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell on one back end. `why_not` says why it may not be compared with the others of its row."""

    acceptance: AcceptanceSource
    result: CellResult | None
    comparison: Comparison | None
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A cell on no back end, with one entry per column."""

    cell: Cell
    entries: tuple[Entry, ...]

    @property
    def sources(self) -> list[AcceptanceSource]:
        """Sources of acceptance of the comparable entries, each once."""
        return list(dict.fromkeys(e.acceptance for e in self.entries if e.why_not is None))


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table: every row has one entry per column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of one run. `run` is an index into `Trends.runs`."""

    run: int
    value: float
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one cell over the runs with the same `group`, a key of `Trends.groups`. The oldest reading comes
    first.
    """

    cell: Cell
    metric: str
    group: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs in the order in which they were started, and how their figures develop.

    `groups`: name → facts. A group is everything that must be the same for figures to be comparable: machine,
        weights, prompts, and what was asked. The source tree is not part of it, because its effect is what a trend
        shows.
    `unread`: why folders could not be read.
    """

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    groups: Mapping[str, Mapping[str, str]]
    unread: tuple[str, ...]

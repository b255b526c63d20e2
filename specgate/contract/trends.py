"""Data classes of `specgate runs history`: the same figure of the same cell over many runs, and where it changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgate.contract import Cell, Run


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of one run. `run` is an index into `Trends.runs`."""

    run: int
    value: float
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A place where the level of a series changed.

    `at`: index, in `Series.readings`, of the first reading after the change.
    `before`, `after`: geometric means of the readings on either side, up to the next change.
    `p`: the chance of so large a step at some place if the readings had come in random order.
    """

    at: int
    before: float
    after: float
    p: float


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one cell over the runs with the same `group`, a key of `Trends.groups`. The oldest reading comes
    first.

    `changes`: where its level changed, in order; None where it was not searched, for want of runs.
    """

    cell: Cell
    metric: str
    group: str
    readings: tuple[Reading, ...]
    changes: tuple[ChangePoint, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs in the order in which they were started, and how their figures develop.

    `groups`: name → facts. A group is everything that must be the same for figures to be comparable: machine,
        weights, prompts, and what was asked. The source tree is not part of it, because its effect is what a trend
        shows.
    `unread`: why folders could not be read.
    `budget`: the chance that change points are marked although nothing changed, over all series together.
    `least_runs`: how many readings the only series of a history must have to be searched for them.
    """

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    groups: Mapping[str, Mapping[str, str]]
    unread: tuple[str, ...]
    budget: float = 0.0
    least_runs: int = 0

"""Data classes of `specgate history`: the same figure of the same cell over many runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgate.core import Cell, Run


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of one run. `run` is an index into `Trends.runs`."""

    run: int
    value: float
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one cell over the runs with the same `ground`, a key of `Trends.grounds`. The oldest reading comes
    first.
    """

    cell: Cell
    metric: str
    ground: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs in the order in which they were started, and how their figures develop.

    `grounds`: name → facts. A ground is everything that must be the same for figures to be comparable: machine,
        weights, prompts, and what was asked. The source tree is not part of it, because its effect is what a trend
        shows.
    `unread`: why folders could not be read.
    """

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    grounds: Mapping[str, Mapping[str, str]]
    unread: tuple[str, ...]

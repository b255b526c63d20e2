"""The nouns of `specgate history`: the same figure of the same cell over many runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgate.core import Cell, Run


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of one run; `run` is its place in `Trends.runs`."""

    run: int
    value: float
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one cell on one ground, oldest reading first. `ground` is a key of `Trends.grounds`."""

    cell: Cell
    metric: str
    ground: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs in the order in which they were started, what they say over time, and why folders could not be read.

    A ground is what must stay the same for figures to be of one kind: machine, weights, prompts, and what was asked.
    The source tree is not in it: its effect is what a trend shows.
    """

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    grounds: Mapping[str, Mapping[str, str]]
    unread: tuple[str, ...]

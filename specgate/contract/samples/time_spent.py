"""Times of a run beside its blocks: how long engines took to start, and the points whose time was spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from specgate.contract.types import SECONDS, Count, Range

Seconds = Annotated[float, Range(ge=0, le=SECONDS)]


@dataclass(frozen=True, slots=True)
class EngineStart:
    """The start of an engine's process, until it had loaded its weights. `span_ns`: from when to when, by the
    monotonic clock of the machine.
    """

    worker_generation: Count
    span_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TimeEnd:
    """A point that was measured until its time was spent.

    `point`: its key. `rounds`: measured rounds at its end. `seconds`: the time that they took. `budget_s`: the time
    that it had.
    """

    point: str
    rounds: Annotated[int, Range(ge=1)]
    seconds: Seconds
    budget_s: Annotated[float, Range(gt=0, le=SECONDS)]


TimeEnds = Mapping[str, tuple[TimeEnd, ...]]
"""Point key → its ends by time, in the order in which they came. A run that went on with more time has several."""

"""Up to which level of load speculation pays: what a sweep over levels amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["everywhere", "nowhere", "crosses", "beyond", "below", "mixed", "partly", "unclear"]
"""What a sweep shows, at its confidence:

`everywhere`, `nowhere`: speculation pays, or costs, at every measured level.
`crosses`: it pays at small levels and costs at great ones.
`beyond`: it pays from the smallest level up to `low`. At greater ones that is not told everywhere.
`below`: it costs from `high` up to the greatest level. At smaller ones that is not told.
`mixed`: it costs at a level and pays at a greater one.
`partly`: it is told from the baseline at some levels, neither from the smallest on nor up to the greatest.
`unclear`: at no level is it told from the baseline.
"""


@dataclass(frozen=True, slots=True)
class LevelRatio:
    """Spec's speed over the baseline's at one level, with its 95 % interval; None where there is no figure.

    `cell`: key of the spec cell. `pairs`: pairs of blocks.
    """

    level: float
    cell: str
    pairs: int
    ratio: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Level at which the ratio of speeds crosses 1 within one sweep: one scenario, context and draft length.

    `open_loop`: levels are requests per second, and the ratio is of latencies; else levels are clients, and it is of
        throughputs.

    `value`: the level at which the estimated ratio first falls to 1, interpolated in log2(level); None where it does
        not within the sweep.
    `low`, `high`: ends of the confidence interval of that level. None where the interval goes on beyond the sweep on
        that side, and where no level of the sweep can be the break-even.
    `outcome`: what is told at `confidence`.
    """

    scenario: str
    context: int
    k: int
    open_loop: bool
    levels: tuple[LevelRatio, ...]
    outcome: Outcome
    value: float | None
    low: float | None
    high: float | None
    confidence: float

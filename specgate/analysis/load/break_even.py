"""The level of load at which the ratio of speeds crosses 1, with a confidence interval.

The mean log-ratio of each measured level is interpolated in log2(level): between two levels by the polynomial through
both and the next level on either side, where there is one. So a ratio that bends is followed: through four levels up
to the third power, through three up to the second. Between two levels alone it is a line. The break-even is where the
curve first falls to 0.

Its confidence interval is Fieller's (Journal of the Royal Statistical Society B 16, 1954), found by inverting a test:
it holds every level x at which the interpolated log-ratio does not differ from 0 by more than its own interval. The
test at the true break-even is wrong with the error that was asked for, whatever the slope. So the set of levels that
are not rejected covers it with that confidence. Nothing has to be divided by a slope that may be 0, and no resampling
of the few pairs that a level has is needed. Where the test rejects nowhere, or not on one side, the set is unbounded
there, and the answer says so.

The interpolated value at x is Σ wᵢ·mᵢ with Lagrange's weights of x. Its variance is Σ wᵢ²·sᵢ², since levels share no
pair, with degrees of freedom after Satterthwaite (Biometrics Bulletin 2, 1946) and Welch (Biometrika 34, 1947). What
differs between runs is added as in every other interval (`intervals.decision`); it is the same process at all levels,
so it is not averaged away. The distance between the curve and the line between the two levels is added, too: a ratio
that has a kink instead of a bend lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.intervals.between_runs import half_width
from specgate.analysis.stats import ALPHA
from specgate.contract import BetweenRuns
from specgate.contract.load import Outcome

Array = NDArray[np.float64]
CONFIDENCE: Final = 1 - 2 * ALPHA
PLACES: Final = 256
"""Places between two levels at which the test is made: an end of the interval is off by 1/256 of a doubling at most."""


@dataclass(frozen=True, slots=True)
class Level:
    """The mean log-ratio at one level, with the standard error that this run gives it.

    `freedom`: degrees of freedom of the error. `between`: what differs between runs. `error_above`, `error_below`: the
    chance that a decision may be wrong which says that it lies above 0, or below.
    """

    level: float
    mean: float
    error: float
    freedom: int
    between: BetweenRuns
    error_above: float = ALPHA
    error_below: float = ALPHA


@dataclass(frozen=True, slots=True)
class Found:
    """The fields of `contract.load.BreakEven` that follow from the levels."""

    outcome: Outcome
    value: float | None
    low: float | None
    high: float | None


def break_even_of(levels: Sequence[Level], error: float = ALPHA) -> Found:
    """Return the level at which the log-ratio of `levels` (ascending) falls to 0. `error`: of the test, per side."""
    if not levels:
        return Found("unclear", None, None, None)
    along = sweep_curve(levels, error)
    sides = along.sides
    outcome = outcome_of(sides)
    if outcome in ("everywhere", "nowhere"):
        return Found(outcome, None, None, None)
    # The ends lie at the last places that are told, so that the interval is never narrower than it is.
    begin = next(i for i, side in enumerate(sides) if side != sides[0] or side == 0)
    end = next(i for i in reversed(range(len(sides))) if sides[i] != sides[-1] or sides[i] == 0)
    low = None if sides[0] == 0 else math.exp2(along.x[begin - 1])
    high = None if sides[-1] == 0 or outcome == "beyond" else math.exp2(along.x[end + 1])
    return Found(outcome, first_fall(along), low, high)


Side = Literal["above", "below", "open"]


def pays_up_to(levels: Sequence[Level], limit: float) -> Side:
    """Does speculation pay at every level up to `limit`, which must lie within the sweep?

    "above" where every measured level up to there is told to lie above 0, and so is the place at `limit`: between two
    such levels the curve does, too. That is an intersection–union test (Berger 1982), whose error is at most that of a
    level. "below" where a measured level up to there is told to lie below 0; the errors of all levels add up to that of
    the sweep (Bonferroni). Else "open".
    """
    within = [level for level in levels if level.level <= limit]
    sides = [side_of(level) for level in within]
    if -1 in sides:
        return "below"
    if within[-1].level < limit:
        sides.append(place_side(levels, len(within) - 1, limit))
    return "above" if all(side == 1 for side in sides) else "open"


def side_of(level: Level) -> int:
    """At the errors of the level: 1 where its log-ratio is told to lie above 0, −1 where below, 0 where neither."""
    if level.mean > reach_of(level, level.error_above):
        return 1
    return -1 if -level.mean > reach_of(level, level.error_below) else 0


def reach_of(level: Level, error: float) -> float:
    return float(sweep_curve([level], error).reach[0])


def place_side(levels: Sequence[Level], i: int, place: float) -> int:
    """As `side_of`, of the place `place` between level `i` and the next one; with the smaller of their errors."""
    along = sweep_curve(levels, min(level.error_above for level in levels[i : i + 2]))
    return along.sides[int(abs(along.x - math.log2(place)).argmin())]


def outcome_of(sides: Sequence[int]) -> Outcome:
    """Outcome of a sweep by the signs along it: +1 if speculation pays, −1 if it costs, 0 if neither is told."""
    signs = [side for side, _ in groupby(side for side in sides if side)]
    if not signs:
        return "unclear"
    if signs == [1, -1]:
        return "crosses"
    if len(signs) > 1:
        return "mixed"
    if 0 not in sides:
        return "everywhere" if signs == [1] else "nowhere"
    if signs == [1] and sides[0] == 1:
        return "beyond"
    return "below" if signs == [-1] and sides[0] == 0 and sides[-1] == -1 else "partly"


def first_fall(along: Curve) -> float | None:
    """The first level at which the interpolated log-ratio falls to 0; None where it does not, or begins there."""
    falls = np.flatnonzero((along.mean[:-1] > 0) & (along.mean[1:] <= 0))
    if not len(falls):
        return None
    (a, b), (above, below) = along.x[falls[0] :][:2], along.mean[falls[0] :][:2]
    return math.exp2(a + above / (above - below) * (b - a))


# ── along the curve ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Curve:
    """The interpolated log-ratio at places along a sweep.

    `x`: log2(level). `reach`: how far the true log-ratio may lie from `mean`, on either side.
    """

    x: Array
    mean: Array
    reach: Array

    @property
    def sides(self) -> list[int]:
        """Per place: 1 where the log-ratio is told to be above 0, −1 where below, 0 where neither."""
        signs = 1 * (self.mean > self.reach) - 1 * (self.mean < -self.reach)
        side_list: list[int] = signs.tolist()
        return side_list


def sweep_curve(levels: Sequence[Level], error: float) -> Curve:
    """The curve through `levels`, with `error` on each side of every place."""
    from scipy.special import stdtrit

    parts = [between_two(levels, i, error) for i in range(len(levels) - 1)]
    last = levels[-1]
    end = (math.log2(last.level), last.mean, last.error**2, float(last.freedom), half_width(last.between, error), 0.0)
    parts.append(np.array(end)[:, None])
    x, mean, variance, freedom, between, bend = np.concatenate(parts, axis=1)
    reach = np.hypot(stdtrit(freedom, 1 - error) * np.sqrt(variance), between) + bend
    return Curve(x, mean, reach)


def support(levels: Sequence[float], i: int) -> list[int]:
    """Indices of the levels that the curve between levels `i` and `i` + 1 goes through: both, and the next one on
    either side that is at least half as far away as the two are apart.
    """
    a, b = levels[i], levels[i + 1]
    least = math.sqrt(b / a)
    before = [j for j in range(i) if levels[j] <= a / least]
    behind = [j for j in range(i + 2, len(levels)) if levels[j] >= b * least]
    return [*before[-1:], i, i + 1, *behind[:1]]


def between_two(levels: Sequence[Level], i: int, error: float) -> Array:
    """Rows log2(level), mean, variance, degrees of freedom, half width between runs, and distance from a line, from
    level `i` up to before the next one.
    """
    used = [levels[j] for j in support([level.level for level in levels], i)]
    nodes = np.log2([level.level for level in used])
    a, b = levels[i], levels[i + 1]
    w = np.arange(PLACES) / PLACES
    x = math.log2(a.level) + w * math.log2(b.level / a.level)
    weights = np.array([np.prod([(x - n) / (m - n) for n in nodes if n != m], axis=0) for m in nodes])
    mean = weights.T @ [level.mean for level in used]
    parts = weights**2 * np.array([[level.error**2] for level in used])
    variance = parts.sum(axis=0)
    spread = (parts**2 / np.array([[level.freedom] for level in used])).sum(axis=0)
    exact = np.full(PLACES, float(min(level.freedom for level in used)))  # of levels without any scatter
    freedom = np.divide(variance**2, spread, out=exact, where=spread > 0)
    widest = max(half_width(level.between, error) for level in used)
    line = (1 - w) * a.mean + w * b.mean
    return np.array([x, mean, variance, freedom, np.full(PLACES, widest), abs(mean - line)])

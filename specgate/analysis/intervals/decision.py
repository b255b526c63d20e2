"""Decisions by intervals: levels of confidence, and the effect that a number of samples can tell."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from specgate.analysis.intervals.autocorrelation import PRIOR_FREEDOM, Fit, Model, fit, fit_of, model_of
from specgate.analysis.intervals.between_runs import half_width, prior_sd
from specgate.analysis.stats import (
    ALPHA,
    MIN_PAIRS,
    POWER,
    Decision,
    Interval,
    Pairs,
    planned_interim_looks,
    side_of,
    t_quantile,
)
from specgate.contract import MOST_PAIRS, PASS_ROUNDS, BetweenRuns, Scenario

FALSE_PASS: Final = 0.005
"""The chance that a cell passes whose true ratio lies at its floor, over all looks together.

It needs no adjustment for many cells: a run is green only if every required cell passes, so the chance of a false green
is at most that of one false PASS (an intersection–union test, Berger 1982).
"""
FALSE_FAIL: Final = 0.0035
"""The chance that any of the required cells of a run fails whose true ratio lies at its floor, over all looks together.

One red cell turns a run red, so the required cells share it (Bonferroni at the looks, Holm 1979 at the end).
"""

FAR: Final = 3e-4
"""Errors below this are read further out in the tail of t (`tail`)."""


def spent(error: float, look: int) -> float:
    """Error that look number `look` (from 1) may spend of `error`: error / (look · (look + 1)).

    That is a half, a sixth, a twelfth, and so on. K looks spend 1 − 1/(K + 1) of it together, so there is always
    something left for one more: a run may be continued with more rounds than were planned.
    """
    return error / (look * (look + 1))


def false_fail(required: bool, decisions: int) -> float:
    """The share of FALSE_FAIL that one decision has.

    `decisions`: how many decisions required rules ask for. Rules that only advise do not turn a run red: each has the
    whole error.
    """
    return FALSE_FAIL / max(decisions, 1) if required else FALSE_FAIL


def detectable(scenario: Scenario, sd: float, between: BetweenRuns, error: float = FALSE_PASS) -> float | None:
    """The true log-ratio that the last look of `scenario` tells from its floor with the chance POWER.

    `sd`: standard deviation of a pair, independent of its neighbours. None where pairs are too few for an interval.
    """
    looks = planned_interim_looks(scenario)
    if looks[-1] < MIN_PAIRS:
        return None
    model = usual(scenario.workload.prompt_sets, looks[-1])
    half = reach(usual_fit(model, sd, between), between, spent(error, len(looks)))
    spread = math.hypot(math.sqrt(model.variances[0]) * sd, between.process_sd, between.machine_sd)
    return half + t_quantile(POWER, model.freedom) * spread


def pairs_needed(
    sets: int, pairs: int, look: int, sd: float, gap: float, between: BetweenRuns, error: float
) -> int | None:
    """Pairs of a point after which the interval reaches less far than `gap`; None where no number would do.

    So far it has `pairs`, over `sets` prompt sets, and `look` looks, which stay. `error`: of all looks together.
    """
    balanced = sets * PASS_ROUNDS

    def enough(more: int) -> bool:
        at = spent(error, look + max(1, math.ceil(math.log2(more / pairs))))
        return reach(usual_fit(usual(sets, more), sd, between), between, at) < gap

    plans = range((-(-pairs // balanced) + 1) * balanced, MOST_PAIRS + 1, balanced)
    place = bisect_left(plans, True, key=enough)
    return plans[place] if place < len(plans) else None


def usual(sets: int, pairs: int) -> Model:
    """The model of a plan of this size, with A B · B A and B A · A B by turns."""
    sets_of = tuple(turn % sets for turn in range(pairs))
    orders = tuple((1, -1, -1, 1)[turn % sets % 4] * (-1) ** (turn // sets) for turn in range(pairs))
    return model_of(orders, sets_of, tuple(range(pairs)))


def usual_fit(model: Model, sd: float, between: BetweenRuns) -> Fit:
    """The fit that independent pairs usually get: each residual sum of squares is taken at its mean."""
    squares = sd**2 * model.residual.trace(axis1=1, axis2=2)
    return fit_of(model, squares, prior_sd(between))


def interval(
    pairs: Pairs,
    between: BetweenRuns,
    error_low: float = ALPHA,
    error_high: float = ALPHA,
    *,
    of_processes: tuple[float, float] | None = None,
) -> Interval | None:
    """The interval of the mean log-ratio over runs, with these errors on its two sides; None for too few pairs.

    Each side is as wide as the square root of the sum of two squares: what this run leaves open, and what differs
    between runs, each at its own t-quantile. That is at least as wide as Cochran's approximate interval (1964) for two
    unknown variances, which keeps its level: a mean of squares is no less than the square of the mean.
    `of_processes`: see `reach`, for both sides.
    """
    fitted = fit(pairs.log_ratios, pairs.orders, pairs.prompt_sets, pairs.turns, prior_sd(between))
    if fitted is None:
        return None
    sides = zip((error_low, error_high), of_processes or (None, None), strict=True)
    low, high = (reach(fitted, between, error, process) for error, process in sides)
    return Interval(
        fitted.mean,
        fitted.mean - low,
        fitted.mean + high,
        fitted.order_effect,
        fitted.sd,
        fitted.freedom,
        fitted.correlation,
    )


def reach(fitted: Fit, between: BetweenRuns, error: float, of_processes: float | None = None) -> float:
    """Bound on how far the true mean lies on one side, with the chance `error`.

    The nearer of two bounds, each of which has half of the error: by the scatter of these pairs alone, and by a
    scatter that leans on the expected one. The chance that either is wrong is at most `error` (Bonferroni). With
    `of_processes`, the error of what differs between runs, the first has all of `error`: where pairs are many, the
    second is never nearer.
    """
    if of_processes is not None:
        own = t_quantile(1 - tail(error), fitted.freedom) * fitted.error
        return math.hypot(own, half_width(between, of_processes))
    half = error / 2
    far = tail(half)
    own = t_quantile(1 - far, fitted.freedom) * fitted.error
    leaning = t_quantile(1 - far, fitted.freedom + PRIOR_FREEDOM) * fitted.prior_error
    return math.hypot(min(own, leaning), half_width(between, far if between.process_freedom is None else half))


def tail(error: float) -> float:
    """The error at which to read t for an actual one of `error`. Where neighbours are alike, the tails of a mean are
    heavier than those of t: below FAR the actual error falls with the square root of the nominal one. An assumed
    standard deviation, which may be too small, is read as far out.
    """
    return error * min(1.0, error / FAR)


def decide(
    pairs: Pairs,
    rounds: int,
    looks: Sequence[int],
    floor: float,
    between: BetweenRuns,
    false_fail: float = FALSE_FAIL,
    *,
    alone: bool = False,
) -> Decision:
    """Is the mean of `pairs` at least `floor` (log scale)? Asked at every look that `rounds` rounds have reached.

    The first look whose interval lies on one side of `floor` decides; later pairs change nothing. "above" is wrong with
    a chance of at most FALSE_PASS over all looks, and "below" with at most `false_fail` (Bonferroni, `spent`).

    `alone`: by the scatter of these pairs alone (`reach`). What differs between processes is then most of an interval,
    and the same at every look of a run. So every look allows for it at the error of the first one.
    """
    constant = (spent(FALSE_PASS, 1), spent(false_fail, 1)) if alone else None
    decision = Decision("open", 0, len(looks), spent(FALSE_PASS, 1), 0, None, spent(false_fail, 1), between)
    for number, look in enumerate(looks, 1):
        if look > rounds:
            break
        pairs_so_far = pairs.until(look)
        low, high = spent(FALSE_PASS, number), spent(false_fail, number)
        bounds = interval(pairs_so_far, between, low, high, of_processes=constant)
        decision = Decision(
            side_of(bounds, floor), number, len(looks), low, len(pairs_so_far.turns), bounds, high, between
        )
        if decision.side != "open":
            break
    return decision

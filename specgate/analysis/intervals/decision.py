"""The interval of a cell's mean log-ratio, and the look that decides. Pure functions of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specgate.analysis.intervals.autocorrelation import Fit, fit
from specgate.analysis.intervals.between_runs import half_width
from specgate.analysis.intervals.levels import FALSE_FAIL, FALSE_PASS, spent
from specgate.analysis.stats import ALPHA, Decision, Interval, Pairs, side_of, t_quantile
from specgate.contract import BetweenRuns


def interval(
    pairs: Pairs, between: BetweenRuns, error_low: float = ALPHA, error_high: float = ALPHA
) -> Interval | None:
    """The interval of the mean log-ratio over runs, with these errors on its two sides; None for too few pairs.

    Each side is as wide as the square root of the sum of two squares: what this run leaves open, and what differs
    between runs, each at its own t-quantile. That is at least as wide as Cochran's approximate interval (1964) for two
    unknown variances, which keeps its level: a mean of squares is no less than the square of the mean.
    """
    fitted = fit(pairs.log_ratios, pairs.orders, pairs.prompt_sets, pairs.turns)
    if fitted is None:
        return None
    low, high = (reach(fitted, between, error) for error in (error_low, error_high))
    return Interval(
        fitted.mean,
        fitted.mean - low,
        fitted.mean + high,
        fitted.order_effect,
        fitted.sd,
        fitted.freedom,
        fitted.error,
        fitted.correlation,
    )


def reach(fitted: Fit, between: BetweenRuns, error: float) -> float:
    """Bound on how far the true mean lies on one side, with the chance `error`."""
    return math.hypot(t_quantile(1 - error, fitted.freedom) * fitted.error, half_width(between, error))


def decide(
    pairs: Pairs,
    rounds: int,
    looks: Sequence[int],
    floor: float,
    between: BetweenRuns,
    false_fail: float = FALSE_FAIL,
) -> Decision:
    """Is the mean of `pairs` at least `floor` (log scale)? Asked at every look that `rounds` rounds have reached.

    The first look whose interval lies on one side of `floor` decides; later pairs change nothing. "above" is wrong with
    a chance of at most FALSE_PASS over all looks, and "below" with at most `false_fail` (Bonferroni, `levels.spent`).
    """
    decision = Decision("open", 0, len(looks), spent(FALSE_PASS, 1), 0, None, spent(false_fail, 1), between)
    for number, look in enumerate(looks, 1):
        if look > rounds:
            break
        pairs_so_far = pairs.until(look)
        low, high = spent(FALSE_PASS, number), spent(false_fail, number)
        bounds = interval(pairs_so_far, between, low, high)
        decision = Decision(
            side_of(bounds, floor), number, len(looks), low, len(pairs_so_far.turns), bounds, high, between
        )
        if decision.side != "open":
            break
    return decision

"""Decisions by intervals: levels of confidence, and the effect that a number of samples can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from specgate.analysis.intervals.autocorrelation import CONTRADICTED, Fit, Model, fit, model_of
from specgate.analysis.intervals.between_runs import half_width
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
    at = spent(error, len(looks))
    half = math.hypot(t_quantile(1 - at, model.freedom) * error_of(model, sd), half_width(between, at))
    spread = math.hypot(math.sqrt(model.weighings[0].variance) * sd, between.process_sd, between.machine_sd)
    return half + t_quantile(POWER, model.freedom) * spread


def pairs_needed(
    sets: int, pairs: int, look: int, sd: float, gap: float, between: BetweenRuns, error: float
) -> int | None:
    """Pairs of a point after which the interval reaches less far than `gap`; None where no number would do.

    So far it has `pairs`, over `sets` prompt sets, and `look` looks, which stay. `error`: of all looks together.
    """
    more = -(-pairs // (sets * PASS_ROUNDS)) * sets * PASS_ROUNDS
    while (more := more + sets * PASS_ROUNDS) <= MOST_PAIRS:
        at = spent(error, look + max(1, math.ceil(math.log2(more / pairs))))
        model = usual(sets, more)
        if math.hypot(t_quantile(1 - at, model.freedom) * error_of(model, sd), half_width(between, at)) < gap:
            return more
    return None


def usual(sets: int, pairs: int) -> Model:
    """The model of a plan of this size, with A B · B A and B A · A B by turns."""
    sets_of = tuple(turn % sets for turn in range(pairs))
    orders = tuple((1, -1, -1, 1)[turn % sets % 4] * (-1) ** (turn // sets) for turn in range(pairs))
    return model_of(orders, sets_of, tuple(range(pairs)))


def error_of(model: Model, sd: float) -> float:
    """The standard error that independent pairs usually get: each residual sum of squares is taken at its mean."""
    squares = [max(float(w.residual.trace()), 0.0) for w in model.weighings]
    fits = [model.freedom * math.log(q) + w.constant for q, w in zip(squares, model.weighings, strict=True)]
    return sd * max(
        math.sqrt(q / model.freedom * w.variance)
        for q, w, fit in zip(squares, model.weighings, fits, strict=True)
        if fit <= min(fits) + CONTRADICTED
    )


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

"""Power of a plan: the smallest difference that it can tell, and the rounds that a difference takes. Pure."""

from __future__ import annotations

import math

from specgate.analysis.intervals.autocorrelation import CONTRADICTED, Model, model_of
from specgate.analysis.intervals.between_runs import half_width
from specgate.analysis.intervals.levels import FALSE_PASS, spent
from specgate.analysis.stats import MIN_PAIRS, POWER, planned_interim_looks, t_quantile
from specgate.contract import PASS_ROUNDS, BetweenRuns, Scenario

MOST_PAIRS = 384
"""Plans with more pairs are not considered: what so many do not tell is better found with less noise."""


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


def rounds_needed(scenario: Scenario, sd: float, gap: float, between: BetweenRuns, error: float) -> int | None:
    """Rounds per prompt set after which the interval reaches less far than `gap`; None where none would do.

    The run is taken to be continued, so that its looks so far stay.
    """
    looks, sets = len(planned_interim_looks(scenario)), scenario.workload.prompt_sets
    rounds = scenario.schedule.rounds + scenario.schedule.rounds % PASS_ROUNDS
    while (rounds := rounds + PASS_ROUNDS) * sets <= MOST_PAIRS:
        at = spent(error, looks + max(1, math.ceil(math.log2(rounds / scenario.schedule.rounds))))
        model = usual(sets, sets * rounds)
        if math.hypot(t_quantile(1 - at, model.freedom) * error_of(model, sd), half_width(between, at)) < gap:
            return rounds
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

"""The slope of a figure over a quantity that grows during a run, with a standard error that allows for neighbours that
are alike.

The model is that of `autocorrelation.py` with the quantity in the place of the order: yᵢ = m[prompt set of i] +
slope · xᵢ + eᵢ, with the same covariances of e. The slope is estimated by ordinary least squares. Two standard errors
allow for what is no slope and looks like one:

- A slow wandering of all figures: `error` is the largest over the covariances that the figures do not contradict.
- Prompt sets that change on their own, each for good: `set_error` is the spread of the slopes of single sets
  (cluster-robust, as in Liang and Zeger 1986, with one degree of freedom less than there are sets).

An interval reaches as far as the wider of the two says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.intervals.autocorrelation import model_of
from specgate.analysis.stats import MIN_FREEDOM, t_quantile

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope per unit of x. `error`: its standard error, with `freedom` degrees of freedom.

    `correlation`: the correlation of neighbours that the error allows for.
    `set_error`: its standard error by the spread over `sets` prompt sets; 0 where sets did not run often enough to be
        told apart, or there is but one.
    """

    slope: float
    error: float
    freedom: int
    correlation: float
    set_error: float = 0.0
    sets: int = 1


def reach(error: float, freedom: int, set_error: float, sets: int, chance: float) -> float:
    """Bound on how far the true slope lies on one side, with the chance `chance`. The other arguments are those of a
    `Slope`.
    """
    of_sets = t_quantile(1 - chance, sets - 1) * set_error if sets > 1 else 0.0
    return max(t_quantile(1 - chance, freedom) * error, of_sets)


def slope_of(figures: Sequence[float], xs: Sequence[float], prompt_sets: Sequence[int]) -> Slope | None:
    """The slope of `figures` over `xs`, both in running order; None where fewer than MIN_FREEDOM degrees of freedom are
    left, or `xs` are all the same.

    Prompt sets that ran too seldom to be told apart count as noise, as in `stats.order_interval`.
    """
    if len(figures) < MIN_FREEDOM + 2 or len(set(xs)) < 2:
        return None
    model = model_of(tuple(xs), tuple(prompt_sets), tuple(range(len(xs))))
    if model.freedom < MIN_FREEDOM:
        return None
    sets = len(set(prompt_sets))
    if sets < len(figures) and len(set(zip(prompt_sets, figures, strict=True))) == sets:
        return Slope(0.0, 0.0, model.freedom, 0.0)  # every set keeps its figure: only rounding would be left
    y = np.asarray(figures, float)
    errors = model.errors(model.squares(y), of=model.order_variances)
    widest = int(errors.argmax())
    slope = float(model.order_weights @ y)
    set_error, told_apart = spread_over_sets(y, np.asarray(xs, float), np.asarray(prompt_sets), slope)
    if model.freedom != len(figures) - sets - 1:  # the model has one mean for all sets
        set_error, told_apart = 0.0, 1
    return Slope(slope, float(errors[widest]), model.freedom, float(model.correlations[widest]), set_error, told_apart)


def spread_over_sets(y: Array, x: Array, prompt_sets: Array, slope: float) -> tuple[float, int]:
    """(standard error of `slope` by the spread over prompt sets, how many sets ran more than once)."""
    scores, weights = [], []
    for one in np.unique(prompt_sets):
        mine = prompt_sets == one
        around = x[mine] - x[mine].mean()
        if weight := float(around @ around):
            weights.append(weight)
            scores.append(float(around @ y[mine]) - slope * weight)
    count = len(weights)
    if count < 2:
        return 0.0, 1
    return math.sqrt(count / (count - 1) * sum(score * score for score in scores)) / sum(weights), count

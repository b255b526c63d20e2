"""The standard error of the mean of pairs that may resemble their neighbours.

A clock that sinks, a neighbour that comes and goes, a cache that fills: noise of that kind lasts for several pairs. An
interval that takes pairs for independent is then too narrow, and up to one wrong verdict in seven was the result.

The model is dᵢ = m[prompt set of i] + b·oᵢ + eᵢ, where e is an AR(1) process: two pairs that lie t rounds apart have
the correlation ρᵗ. The mean of m is estimated by ordinary least squares, so it stays the plain mean of the pairs. Its
standard error is computed for each ρ of a grid, with the residual variance of generalised least squares (Aitken). It
is the largest of those whose ρ the pairs do not contradict: a confidence set for the nuisance parameter, as in Berger
and Boos (1994), from the restricted likelihood (Patterson and Thompson 1971).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from specgate.analysis.stats import MIN_PAIRS, designs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CORRELATIONS: Final = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Correlations of neighbouring pairs that are considered. A run whose pairs are more alike than 0.9 is one long state
of the machine: what a single run cannot see (`between_runs.py`).
"""
CONTRADICTED: Final = 6.0
"""A correlation is ruled out where −2 ln of its restricted likelihood lies further than this above the best one's.

With it, AR(1) noise of 0.9 costs less than the error asked for at every shipped schedule (docs/statistics.md).
"""


@dataclass(frozen=True, slots=True)
class Fit:
    """The mean log-ratio of a cell, and how well this run alone knows it.

    `error`: standard error of the mean. `sd`: standard deviation of a pair. `freedom`: degrees of freedom of both.
    `correlation`: the correlation of neighbouring pairs that the error allows for.
    """

    mean: float
    error: float
    freedom: int
    sd: float
    order_effect: float
    correlation: float


@dataclass(frozen=True, slots=True)
class Weighing:
    """Weights that one correlation gives to pairs d. Their residual sum of squares is d′·`residual`·d, with the
    variance σ² times `freedom`; the variance of their mean is σ²·`variance`, that of the order effect
    σ²·`order_variance`.

    `constant`: −2 ln of the restricted likelihood is freedom·ln(sum of squares) + constant.
    """

    correlation: float
    residual: Array
    variance: float
    order_variance: float
    constant: float


@dataclass(frozen=True, slots=True)
class Model:
    """The least-squares model of a list of pairs; it depends on when they ran, and not on what they measured.

    `weights`: the mean is weights·d. `order_weights`: the order effect is order_weights·d.
    """

    weights: Array
    order_weights: Array
    freedom: int
    weighings: tuple[Weighing, ...]


def fit(
    log_ratios: Sequence[float], orders: Sequence[int], prompt_sets: Sequence[int], turns: Sequence[int]
) -> Fit | None:
    """The mean of `log_ratios` with its standard error; None for fewer than MIN_PAIRS. See `stats.Pairs`."""
    import numpy as np

    if len(log_ratios) < MIN_PAIRS:
        return None
    d = np.asarray(log_ratios, float)
    model = model_of(tuple(orders), tuple(prompt_sets), tuple(turns))
    around = d - d.mean()  # the same sums of squares, but without the loss of digits
    squares = [max(float(around @ w.residual @ around), 0.0) for w in model.weighings]
    plausible = list(uncontradicted(model, squares))
    error, correlation = max((math.sqrt(squares[i] / model.freedom * w.variance), w.correlation) for i, w in plausible)
    sd = math.sqrt(squares[0] / model.freedom)
    return Fit(float(model.weights @ d), error, model.freedom, sd, float(model.order_weights @ d), correlation)


def uncontradicted(model: Model, squares: Sequence[float]) -> Iterator[tuple[int, Weighing]]:
    """The correlations that residual sums of squares, one per correlation, do not rule out."""
    if min(squares) <= 0:
        yield from enumerate(model.weighings)
        return
    fits = [model.freedom * math.log(q) + w.constant for q, w in zip(squares, model.weighings, strict=True)]
    yield from ((i, w) for i, w in enumerate(model.weighings) if fits[i] <= min(fits) + CONTRADICTED)


@lru_cache(maxsize=64)
def model_of(orders: tuple[float, ...], prompt_sets: tuple[int, ...], turns: tuple[int, ...]) -> Model:
    """The model of pairs that ran in these `turns` (rounds of the point), with these orders and prompt sets.

    Where several pairs share a round, as in an A/A run, their places in the list are their turns.
    """
    import numpy as np

    design, sets = next(designs(orders, prompt_sets))
    columns = design.shape[1]
    solved = np.linalg.pinv(design)
    weights = np.where(np.arange(columns) < sets, design.mean(axis=0), 0.0) @ solved
    order_weights = solved[sets] if columns > sets else np.zeros(len(orders))
    when = np.asarray(turns if len(set(turns)) == len(turns) else range(len(turns)))
    apart = np.abs(np.subtract.outer(when, when))

    def weighing(correlation: float) -> Weighing:
        alike = correlation**apart if correlation else np.eye(len(orders))
        inverse = np.linalg.inv(alike)
        weighted = design.T @ inverse
        information = weighted @ design
        residual = inverse - weighted.T @ np.linalg.solve(information, weighted)
        constant = np.linalg.slogdet(alike)[1] + np.linalg.slogdet(information)[1]
        of_mean, of_order = (float(w @ alike @ w) for w in (weights, order_weights))
        return Weighing(correlation, residual, of_mean, of_order, float(constant))

    return Model(weights, order_weights, len(orders) - columns, tuple(map(weighing, CORRELATIONS)))

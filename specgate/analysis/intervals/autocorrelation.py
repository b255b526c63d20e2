"""The standard error of the mean of pairs that may resemble their neighbours.

A clock that sinks, a neighbour that comes and goes, a cache that fills: noise of that kind lasts for several pairs. An
interval that takes pairs for independent is then too narrow, and up to one wrong verdict in seven was the result.

The model is dᵢ = m[prompt set of i] + b·oᵢ + eᵢ. Two errors e that lie t rounds apart have the covariance
σ²·((1 − w)·[t = 0] + w·ρᵗ): an AR(1) process of share w, with white noise beside it. The mean of m over prompt sets is
estimated by ordinary least squares, so it stays the plain mean of the pairs of whole passes. Its standard error is
computed for each covariance of a grid, with the residual variance of generalised least squares (Aitken). It is the
largest of those that the pairs do not contradict: a confidence set for the nuisance parameters, as in Berger and Boos
(1994), from the restricted likelihood (Patterson and Thompson 1971).

The same is done a second time with a variance that leans on a prior one (`PRIOR_SD`), as in a conjugate normal model:
few pairs then know their scatter better than by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.stats import MIN_PAIRS, designs

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
CORRELATIONS: Final = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Correlations of neighbouring pairs that are considered, without white noise beside them."""
CONTRADICTED: Final = 6.0
"""One of CORRELATIONS is ruled out where −2 ln of its restricted likelihood lies further than this above the best.

With it, AR(1) noise of 0.9 costs less than the error asked for at every shipped schedule (docs/statistics.md).
"""
SHARES: Final = (0.25, 0.5)
"""Shares of AR(1) noise beside white noise, each with every correlation of 0.5 or more. White noise hides a correlation
from the likelihood of a pure AR(1) process.
"""
LONG: Final = (0.95, 0.97)
"""Correlations that are considered with every share, and with 1, from MANY pairs on. Fewer pairs that are so much alike
are one long state of the machine: what a single run cannot see (`between_runs.py`). Fewer do not contradict them
either, even if they are independent: 64 pairs would bound a ratio hardly better than 32.
"""
MANY: Final = 128
CONTRADICTED_MIX: Final = 2.0
"""The bound of CONTRADICTED for the covariances of SHARES and LONG."""
PRIOR_SD: Final = 0.05
"""Standard deviation of a pair that is expected at least: as on a shared CPU."""
PRIOR_FREEDOM: Final = 4
"""Degrees of freedom that the expected standard deviation counts for."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The mean log-ratio of a cell, and how well this run alone knows it.

    `error`: standard error of the mean. `sd`: standard deviation of a pair. `freedom`: degrees of freedom of both.
    `correlation`: the correlation of neighbouring pairs that the error allows for.
    `prior_error`: the standard error with the prior variance, of PRIOR_FREEDOM degrees of freedom more.
    """

    mean: float
    error: float
    freedom: int
    sd: float
    order_effect: float
    correlation: float
    prior_error: float


@dataclass(frozen=True, slots=True)
class Model:
    """The least-squares model of a list of pairs d; it depends on when they ran, and not on what they measured.

    `weights`: the mean is weights·d. `order_weights`: the order effect is order_weights·d.
    `once`: the variance that sets which ran once add to the mean. If such a pair is an outlier, no residual shows it.
    All else has one entry per covariance: float64 [covariances], `residual` [covariances, pairs, pairs].
    `correlations`: of neighbouring pairs. `residual`: d′·residual·d is the residual sum of squares, with the variance
        σ² times `freedom`.
    `variances`, `order_variances`: the variance of the mean and of the order effect, divided by σ².
    `constants`: −2 ln of the restricted likelihood is freedom·ln(sum of squares) + constant.
    `tolerances`: how far that may lie above the least.
    """

    weights: Array
    order_weights: Array
    freedom: int
    once: float
    correlations: Array
    residual: Array
    variances: Array
    order_variances: Array
    constants: Array
    tolerances: Array

    def squares(self, d: Array) -> Array:
        """The residual sums of squares of `d`, float64 [pairs] or [runs, pairs]: float64 [covariances] or [runs,
        covariances].
        """
        around = d - d.mean(axis=-1, keepdims=True)  # the same sums of squares, but without the loss of digits
        if d.ndim == 1:  # at once, for a call takes longer than a product; of many runs, that would fill the memory
            sums = ((around @ self.residual) * around).sum(axis=-1)
        else:
            sums = np.stack([((around @ one) * around).sum(axis=-1) for one in self.residual], axis=-1)
        squares: Array = np.maximum(sums, 0.0)
        return squares

    def plausible(self, squares: Array) -> Flags:
        """The covariances that residual sums of squares do not contradict: bool, in the shape of `squares`."""
        fits = self.freedom * np.log(np.maximum(squares, np.finfo(float).tiny)) + self.constants
        exact = squares.min(axis=-1, keepdims=True) <= 0
        kept: Flags = exact | (fits <= fits.min(axis=-1, keepdims=True) + self.tolerances)
        return kept

    def errors(self, squares: Array, prior: float | Array = 0.0, of: Array | None = None) -> Array:
        """Standard errors by residual sums of squares, in their shape; 0 for contradicted covariances.

        `prior`: a sum of squares that is expected beforehand, with PRIOR_FREEDOM degrees of freedom; 0 for none.
        `of`: the estimate that the errors are of, `variances` (the mean) or `order_variances`.
        """
        freedom = self.freedom + np.where(np.asarray(prior) > 0, PRIOR_FREEDOM, 0)
        variance = (squares + prior) / freedom * (self.variances if of is None else of)
        if of is None:
            variance = variance + self.once
        kept: Array = np.sqrt(np.where(self.plausible(squares), variance, 0.0))
        return kept


def fit(
    log_ratios: Sequence[float],
    orders: Sequence[int],
    prompt_sets: Sequence[int],
    turns: Sequence[int],
    prior_sd: float = PRIOR_SD,
) -> Fit | None:
    """The mean of `log_ratios` with its standard errors; None for fewer than MIN_PAIRS. See `stats.Pairs`.

    `prior_sd`: standard deviation of a pair that is expected beforehand.
    """
    if len(log_ratios) < MIN_PAIRS:
        return None
    d = np.asarray(log_ratios, float)
    model = model_of(tuple(orders), tuple(prompt_sets), tuple(turns))
    fitted = fit_of(model, model.squares(d), prior_sd)
    return replace(fitted, mean=float(model.weights @ d), order_effect=float(model.order_weights @ d))


def fit_of(model: Model, squares: Array, prior_sd: float) -> Fit:
    """The fit of a mean of 0 by its residual sums of squares, float64 [covariances]."""
    errors = model.errors(squares)
    widest = int(errors.argmax())
    return Fit(
        mean=0.0,
        error=float(errors[widest]),
        freedom=model.freedom,
        sd=math.sqrt(squares[0] / model.freedom),
        order_effect=0.0,
        correlation=float(model.correlations[widest]),
        prior_error=float(model.errors(squares, PRIOR_FREEDOM * prior_sd**2).max()),
    )


def covariances(pairs: int) -> Iterator[tuple[float, float, float]]:
    """(correlation ρ, share w, tolerance) of every covariance that is considered for so many pairs."""
    yield from ((correlation, 1.0, CONTRADICTED) for correlation in CORRELATIONS)
    yield from ((c, share, CONTRADICTED_MIX) for c in CORRELATIONS if c >= 0.5 for share in SHARES)
    if pairs >= MANY:
        yield from ((correlation, share, CONTRADICTED_MIX) for correlation in LONG for share in (*SHARES, 1.0))


@lru_cache(maxsize=32)
def model_of(orders: tuple[float, ...], prompt_sets: tuple[int, ...], turns: tuple[int, ...]) -> Model:
    """The model of pairs that ran in these `turns` (rounds of the point), with these orders and prompt sets.

    Where several pairs share a round, as in an A/A run, their places in the list are their turns.
    """
    design, sets = next(designs(orders, prompt_sets))
    columns = design.shape[1]
    solved = np.linalg.pinv(design)
    weights = np.where(np.arange(columns) < sets, 1 / sets, 0.0) @ solved
    order_weights = solved[sets] if columns > sets else np.zeros(len(orders))
    alone = design[:, :sets].sum(axis=0) == 1
    once = PRIOR_SD**2 * np.count_nonzero(alone) / sets**2
    when = np.asarray(turns if len(set(turns)) == len(turns) else range(len(turns)))
    apart = np.abs(np.subtract.outer(when, when))
    correlation, share, tolerances = np.array(list(covariances(len(orders)))).T
    alike = share[:, None, None] * correlation[:, None, None] ** apart + np.multiply.outer(1 - share, apart == 0)
    inverse = np.linalg.inv(alike)
    weighted = design.T @ inverse
    information = weighted @ design
    residual = inverse - weighted.swapaxes(1, 2) @ np.linalg.solve(information, weighted)
    of_mean, of_order = ((alike @ w) @ w for w in (weights, order_weights))
    constants = np.linalg.slogdet(alike)[1] + np.linalg.slogdet(information)[1]
    neighbours = share * correlation
    return Model(
        weights,
        order_weights,
        len(orders) - columns,
        once,
        neighbours,
        residual,
        of_mean,
        of_order,
        constants,
        tolerances,
    )

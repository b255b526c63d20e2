"""The standard error against a Cholesky-whitened least-squares fit, and against statistics 1 where there is no
correlation.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.intervals.autocorrelation import CORRELATIONS, fit, model_of
from specgate.analysis.stats import MIN_PAIRS, designs, order_interval, t_quantile

SETS, ORDERS = (0, 1, 2, 3) * 2, (1, -1, -1, 1, -1, 1, 1, -1)
ratios = st.floats(-1.0, 1.0).map(lambda x: round(x, 6))


@given(st.lists(ratios, min_size=8, max_size=8))
def test_without_correlation_it_is_the_error_of_independent_pairs(d: list[float]) -> None:
    model, old = model_of(ORDERS, SETS, tuple(range(8))), order_interval(d, ORDERS, prompt_sets=SETS)
    assert old is not None
    plain = model.weighings[0]
    square = max(float(np.array(d) @ plain.residual @ np.array(d)), 0.0)
    half = t_quantile(0.975, model.freedom) * math.sqrt(square / model.freedom * plain.variance)
    interval = fit(d, ORDERS, SETS, range(8))
    assert interval is not None
    assert (interval.mean, interval.order_effect) == pytest.approx((old.mean, old.order_effect), abs=1e-9)
    assert (interval.sd, half) == pytest.approx((old.sd, (old.high - old.low) / 2), abs=1e-7)
    assert interval.error >= math.sqrt(square / model.freedom * plain.variance) - 1e-12


@pytest.mark.parametrize("turns", [tuple(range(8)), (0, 1, 2, 4, 5, 6, 8, 9)])
@pytest.mark.parametrize("correlation", CORRELATIONS[1:])
def test_each_weighing_is_the_whitened_fit(correlation: float, turns: tuple[int, ...]) -> None:
    """Oracle: whiten with the Cholesky factor, fit by least squares, and multiply the variance out by hand."""
    d = np.random.default_rng(2).normal(0, 1, 8)
    model = model_of(ORDERS, SETS, turns)
    (result,) = [w for w in model.weighings if w.correlation == correlation]
    alike = np.array([[correlation ** abs(a - b) for b in turns] for a in turns])
    white = np.linalg.inv(np.linalg.cholesky(alike))
    design, _ = next(designs(ORDERS, SETS))
    _, squares, *_ = np.linalg.lstsq(white @ design, white @ d, rcond=None)
    assert d @ result.residual @ d == pytest.approx(squares[0])
    assert result.variance == pytest.approx(sum(a * b * v for a, r in zip(model.weights, alike, strict=True)
                                               for b, v in zip(model.weights, r, strict=True)))  # fmt: skip


def test_pairs_that_wander_get_a_wider_error_than_the_same_pairs_shuffled() -> None:
    noise = np.random.default_rng(4)
    orders = (1, -1) * 20
    walk = np.cumsum(noise.normal(0, 0.01, 40))
    wandering, mixed = (fit(d.tolist(), orders, (0,) * 40, range(40)) for d in (walk, noise.permutation(walk)))
    assert wandering is not None and mixed is not None
    assert wandering.correlation >= 0.8 > mixed.correlation
    assert wandering.error > 2 * mixed.error


def test_pairs_that_share_a_round_are_told_apart_by_their_place() -> None:
    d = np.random.default_rng(5).normal(0, 0.01, 8).tolist()
    assert fit(d, ORDERS, SETS, (0, 0, 1, 1, 2, 2, 3, 3)) == fit(d, ORDERS, SETS, range(8))


def test_pairs_without_any_noise_have_no_error() -> None:
    interval = fit([0.5] * 8, ORDERS, SETS, range(8))
    assert interval is not None
    assert (interval.mean, interval.error) == pytest.approx((0.5, 0.0), abs=1e-9)


@pytest.mark.parametrize("n", range(MIN_PAIRS))
def test_too_few_pairs_give_no_error(n: int) -> None:
    assert fit([0.1] * n, [1] * n, [0] * n, range(n)) is None

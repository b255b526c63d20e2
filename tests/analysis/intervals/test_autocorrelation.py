"""The standard error against a Cholesky-whitened least-squares fit, against a likelihood written out, and against
statistics 1 where there is no correlation.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats

from specgate.analysis.intervals.autocorrelation import MANY, PRIOR_FREEDOM, PRIOR_SD, covariances, fit, model_of
from specgate.analysis.stats import MIN_PAIRS, designs, order_interval, t_quantile

SETS, ORDERS = (0, 1, 2, 3) * 2, (1, -1, -1, 1, -1, 1, 1, -1)
ratios = st.floats(-1.0, 1.0).map(lambda x: round(x, 6))


@given(st.lists(ratios, min_size=8, max_size=8))
def test_without_correlation_it_is_the_error_of_independent_pairs(d: list[float]) -> None:
    model, old = model_of(ORDERS, SETS, tuple(range(8))), order_interval(d, ORDERS, prompt_sets=SETS)
    assert old is not None
    plain = math.sqrt(model.squares(np.array(d))[0] / model.freedom * model.variances[0])
    interval = fit(d, ORDERS, SETS, range(8))
    assert interval is not None
    assert (interval.mean, interval.order_effect) == pytest.approx((old.mean, old.order_effect), abs=1e-9)
    half = t_quantile(0.975, model.freedom) * plain
    assert (interval.sd, half) == pytest.approx((old.sd, (old.high - old.low) / 2), abs=1e-7)
    assert interval.error >= plain - 1e-12


def brute_force(d: list[float], turns: tuple[int, ...], prior_sd: float) -> tuple[float, float]:
    """(standard error, the same with the prior): every covariance by a whitened fit and a written-out likelihood."""
    count = len(d)
    sets, orders = tuple(i % 4 for i in range(count)), ORDERS * (count // 8)
    design, _ = next(designs(orders, sets))
    free = linalg.null_space(design.T)  # a likelihood of what the design leaves free: restricted, by its definition
    mean = np.linalg.pinv(design).T[:, :4].mean(axis=1)
    rows = []
    for correlation, share, tolerance in covariances(count):
        alike = np.array([[(1 - share) * (a == b) + share * correlation ** abs(a - b) for b in turns] for a in turns])
        white = linalg.inv(linalg.cholesky(alike, lower=True))
        _, (square,), *_ = np.linalg.lstsq(white @ design, white @ d, rcond=None)
        freedom = count - design.shape[1]
        scale = square / freedom
        deviance = -2 * stats.multivariate_normal(cov=scale * free.T @ alike @ free).logpdf(free.T @ np.array(d))
        of_mean = mean @ alike @ mean
        leaning = (square + PRIOR_FREEDOM * prior_sd**2) / (freedom + PRIOR_FREEDOM)
        rows.append((deviance, tolerance, math.sqrt(scale * of_mean), math.sqrt(leaning * of_mean)))
    least = min(deviance for deviance, *_ in rows)
    kept = [(own, prior) for deviance, tolerance, own, prior in rows if deviance <= least + tolerance]
    return max(own for own, _ in kept), max(prior for _, prior in kept)


@pytest.mark.parametrize("turns", [tuple(range(8)), (0, 1, 2, 4, 5, 6, 8, 9), tuple(range(MANY))])
@pytest.mark.parametrize("slow", [0.0, 0.5, 1.0])
def test_the_error_is_the_largest_of_the_whitened_fits_that_the_likelihood_does_not_rule_out(
    turns: tuple[int, ...], slow: float
) -> None:
    noise, count = np.random.default_rng(round(10 * slow) + len(turns)), len(turns)
    walk = np.cumsum(noise.normal(0, 0.01, count)) * slow + noise.normal(0, 0.01, count) * (1 - slow)
    for prior_sd in (PRIOR_SD, 0.002):
        got = fit(walk.tolist(), ORDERS * (count // 8), [i % 4 for i in range(count)], turns, prior_sd)
        assert got is not None
        assert (got.error, got.prior_error) == pytest.approx(brute_force(walk.tolist(), turns, prior_sd))


def test_white_noise_beside_a_drift_does_not_hide_it() -> None:
    """A pure AR(1) process of 0.9 is ruled out by half of white noise; the two together are not."""
    noise = np.random.default_rng(8)
    slow = [0.0]
    for step in noise.normal(0, math.sqrt(1 - 0.81), 127):
        slow.append(0.9 * slow[-1] + step)
    d = (np.array(slow) + noise.normal(0, 1, 128)).tolist()
    orders, sets = (1, -1, -1, 1) * 32, (0,) * 128
    model, kept = model_of(orders, sets, tuple(range(128))), list(covariances(128))
    plausible = dict(zip(kept, model.plausible(model.squares(np.array(d))), strict=True))
    assert not any(ok for (correlation, share, _), ok in plausible.items() if correlation >= 0.9 and share == 1)
    assert any(ok for (correlation, share, _), ok in plausible.items() if correlation >= 0.9 and share < 1)


@given(st.lists(ratios, min_size=8, max_size=8), st.floats(0.01, 100))
def test_a_scale_of_the_pairs_and_of_the_prior_is_one_of_the_errors(d: list[float], scale: float) -> None:
    one = fit(d, ORDERS, SETS, range(8), 0.05)
    other = fit([scale * x for x in d], ORDERS, SETS, range(8), scale * 0.05)
    assert one is not None and other is not None
    assert other.prior_error == pytest.approx(scale * one.prior_error, rel=1e-6, abs=1e-7)


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


def test_prompt_sets_weigh_the_same_where_a_run_ends_within_a_pass() -> None:
    sets, orders = [0, 1, 2] * 3 + [0], [1, -1, 1, -1, 1, -1, 1, -1, 1, -1]
    means = [0.1, 0.2, 0.6]
    d = [means[prompt_set] + 0.01 * order for prompt_set, order in zip(sets, orders, strict=True)]
    fitted, independent = fit(d, orders, sets, range(10)), order_interval(d, orders, prompt_sets=sets)
    assert fitted is not None and independent is not None
    assert fitted.mean == pytest.approx(0.3)
    assert independent.mean == pytest.approx(0.3)


def test_a_prompt_set_that_ran_once_counts_with_the_expected_scatter_of_a_pair() -> None:
    sets, orders = [*range(8), *range(5)], [1, -1] * 4 + [-1, 1] * 2 + [-1]
    quiet = fit([0.1 * prompt_set for prompt_set in sets], orders, sets, range(13))
    assert quiet is not None
    assert quiet.error == pytest.approx(PRIOR_SD * math.sqrt(3) / 8)

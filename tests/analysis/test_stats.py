"""Intervals against scipy, the textbook formula for balanced orders, and their own promise: coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from specgate.analysis.stats import MIN_PAIRS, cluster_interval, order_interval


def orders(pairs: int) -> list[int]:
    """+1 for pairs in which the baseline runs first, −1 for the others: A B · B A."""
    return [1 if i % 2 == 0 else -1 for i in range(pairs)]


def prompts(sets: int, pairs: int) -> list[int]:
    """The prompt set of every pair: passes over the sets, with two rounds on each."""
    return [i // 2 % sets for i in range(pairs)]


ratios = st.floats(-1.0, 1.0).map(lambda x: round(x, 6))
samples = st.lists(ratios, min_size=MIN_PAIRS, max_size=20)


@given(samples)
def test_pairs_of_one_order_get_the_plain_t_interval(d: list[float]) -> None:
    interval = order_interval(d, [1] * len(d))
    assert interval is not None
    se = float(np.std(d, ddof=1) / math.sqrt(len(d)))
    half = float(scipy_stats.t.ppf(0.975, len(d) - 1)) * se
    assert (interval.low, interval.high) == pytest.approx((np.mean(d) - half, np.mean(d) + half), abs=1e-9)


@given(st.lists(ratios, min_size=2, max_size=10), st.lists(ratios, min_size=2, max_size=10))
def test_balanced_orders_agree_with_the_textbook_formula(first: list[float], second: list[float]) -> None:
    n = min(len(first), len(second))
    d, o = np.array([*first[:n], *second[:n]]), np.array([1] * n + [-1] * n)
    mean, effect = d.mean(), (d * o).mean()
    residual = d - mean - effect * o
    half = scipy_stats.t.ppf(0.975, 2 * n - 2) * math.sqrt((residual @ residual) / (2 * n - 2) / (2 * n))
    interval = order_interval(d.tolist(), o.tolist())
    assert interval is not None
    assert (interval.mean, interval.order_effect) == pytest.approx((mean, effect), abs=1e-9)
    assert (interval.low, interval.high) == pytest.approx((mean - half, mean + half), abs=1e-9)


@given(samples, st.floats(-0.5, 0.5))
def test_a_slot_effect_does_not_move_the_mean_of_balanced_orders(d: list[float], effect: float) -> None:
    doubled, orders = [*d, *d], [1] * len(d) + [-1] * len(d)
    shifted = [x + effect * o for x, o in zip(doubled, orders, strict=True)]
    plain, moved = order_interval(doubled, orders), order_interval(shifted, orders)
    assert plain is not None and moved is not None
    assert moved.mean == pytest.approx(plain.mean, abs=1e-9)
    assert moved.high - moved.low == pytest.approx(plain.high - plain.low, abs=1e-9)


@pytest.mark.parametrize("n", range(MIN_PAIRS))
def test_too_few_pairs_give_no_interval(n: int) -> None:
    assert order_interval([0.1] * n, [1] * n) is None


def test_the_interval_covers_the_true_mean_nineteen_times_in_twenty() -> None:
    noise = np.random.default_rng(11)
    orders = [1, -1] * 4
    covered = 0
    for _ in range(800):
        interval = order_interval((0.3 + 0.05 * np.array(orders) + noise.normal(0, 0.02, 8)).tolist(), orders)
        assert interval is not None
        covered += interval.low <= 0.3 <= interval.high
    assert 0.93 < covered / 800 < 0.97


def test_clusters_of_correlated_steps_widen_the_interval_until_it_covers() -> None:
    """Acceptance differs by prompt: an interval that took steps for independent would be several times too narrow."""
    noise = np.random.default_rng(12)
    covered, widths = 0, []
    for _ in range(400):
        rate = noise.beta(6, 4, 30)
        interval = cluster_interval(noise.binomial(60, rate).tolist(), [60] * 30)
        assert interval is not None
        covered += interval.low <= 0.6 <= interval.high
        widths.append(interval.high - interval.low)
    naive = 2 * 1.96 * math.sqrt(0.6 * 0.4 / (60 * 30))
    assert 0.92 < covered / 400 < 0.98
    assert float(np.mean(widths)) > 2 * naive


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=MIN_PAIRS, max_size=12))
def test_the_cluster_mean_is_the_ratio_of_the_sums(sums: list[tuple[int, int]]) -> None:
    numerators, denominators = zip(*sums, strict=True)
    interval = cluster_interval(numerators, denominators)
    assert interval is not None
    assert interval.mean == pytest.approx(sum(numerators) / sum(denominators))
    assert interval.low <= interval.mean <= interval.high


def test_clusters_without_steps_give_no_interval() -> None:
    assert cluster_interval([0, 0, 0], [0, 0, 0]) is None


# ── prompt sets ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(ratios, min_size=3, max_size=6), st.floats(-0.02, 0.02), st.integers(0, 1000))
def test_what_differs_between_prompts_is_not_noise_once_they_are_repeated(
    of_prompt: list[float], effect: float, seed: int
) -> None:
    """The oracle is the same data without the prompts' differences."""
    noise = np.random.default_rng(seed).normal(0, 0.01, 4 * len(of_prompt))
    sets = prompts(len(of_prompt), len(noise))
    plain = (effect + noise).tolist()
    mixed = [d + of_prompt[s] for d, s in zip(plain, sets, strict=True)]
    one, two = (order_interval(d, orders(len(sets)), prompt_sets=sets) for d in (plain, mixed))
    assert one is not None and two is not None
    assert two.mean == pytest.approx(one.mean + np.mean(of_prompt), abs=1e-9)
    assert (two.high - two.low, two.sd) == pytest.approx((one.high - one.low, one.sd), abs=1e-9)
    assert two.freedom == len(sets) - len(of_prompt) - 1


def test_prompts_that_ran_once_count_as_noise() -> None:
    d, once = [0.1, 0.3, 0.2, 0.5, 0.1, 0.2], list(range(6))
    assert order_interval(d, orders(6), prompt_sets=once) == order_interval(d, orders(6))

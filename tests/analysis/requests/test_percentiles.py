"""Percentiles with intervals: exact where samples are independent, and honest where those of a block are alike."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.requests.percentiles import (
    ERROR,
    Blocks,
    Quantile,
    effective_number,
    neighbours_factor,
    quantiles,
    rank_shares,
)
from specgate.analysis.stats import t_quantile


def quantile(groups: list[list[float]], q: float, error: float = ERROR) -> Quantile | None:
    return next(quantiles(groups, [q], error), None)


def below(k: int, n: int, q: Fraction) -> Fraction:
    """The chance that at most `k` of `n` independent samples lie below the quantile `q`, exactly."""
    return sum((comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k + 1)), Fraction(0))


@given(st.integers(1, 120), st.sampled_from([Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)]))
def test_the_ranks_are_the_innermost_that_keep_the_error(n: int, q: Fraction) -> None:
    low, high = rank_shares(n, float(q), ERROR)
    error = Fraction(ERROR)
    if low is None:
        assert below(0, n, q) > error
    else:
        rank = round(low * n) + 1
        assert below(rank - 1, n, q) <= error < below(rank, n, q)
    if high is None:
        assert 1 - below(n - 1, n, q) > error, "even the largest sample may lie below the percentile"
    else:
        rank = round(high * n)
        assert 1 - below(rank - 1, n, q) <= error < 1 - below(rank - 2, n, q)


def test_a_p99_has_an_upper_bound_from_563_independent_samples_on() -> None:
    """0.99ⁿ ≤ 0.0035 from n = 563 on."""
    assert 0.99**562 > ERROR >= 0.99**563
    assert [rank_shares(n, 0.99, ERROR)[1] is None for n in (562, 563)] == [True, False]


def test_blocks_in_the_order_of_a_drift_are_worth_less_than_shuffled_ones() -> None:
    drift = [[float(i)] for i in range(96)]
    mixed = [drift[i] for i in np.random.default_rng(2).permutation(96)]
    one, other = (quantile(groups, 0.5) for groups in (drift, mixed))
    assert one is not None and other is not None and other.low is not None and other.high is not None
    assert one.low is None or (one.high is not None and one.high - one.low > 1.5 * (other.high - other.low))


def test_the_factor_of_neighbours_is_1_without_scatter_and_sees_a_slow_state() -> None:
    noise = np.random.default_rng(4)
    slow = np.repeat([0.0, 1.0, 0.0, 1.0], 16) + 0.1 * noise.normal(size=64)
    assert neighbours_factor(np.zeros(64)) == neighbours_factor(np.zeros(2)) == 1.0
    assert neighbours_factor(slow) > 2 * neighbours_factor(noise.permutation(slow)) >= 2


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_percentile_is_numpys_and_lies_within_its_bounds(samples: list[float], q: float) -> None:
    estimate = quantile([[x] for x in samples], q)
    assert estimate is not None and estimate.samples == len(samples)
    assert estimate.value == pytest.approx(np.percentile(samples, 100 * q))
    assert estimate.low is None or estimate.low <= estimate.value
    assert estimate.high is None or estimate.high >= estimate.value


def test_stalls_of_whole_blocks_leave_a_tail_open_that_scattered_ones_decide() -> None:
    """2 % of the samples are slow in both: spread over all blocks, or two blocks of a hundred."""
    noise = np.random.default_rng(6).normal(1.0, 0.01, (100, 50))
    scattered, stalled = noise.copy(), noise.copy()
    scattered[:, 0] = 20.0
    stalled[[20, 70]] = 20.0
    one, other = (quantile(samples.tolist(), 0.99) for samples in (scattered, stalled))
    assert one is not None and other is not None and one.value == other.value == 20.0
    assert one.low == 20.0, "the p99 is proven to be slow"
    assert other.low is not None and other.low < 2.0, "two blocks of a hundred prove nothing of the p99"


def test_samples_of_two_blocks_have_no_interval() -> None:
    estimate = quantile([[1.0, 2.0] * 500, [1.5, 2.5] * 500], 0.5)
    assert estimate is not None and estimate.low is None and estimate.high is None
    assert quantile([[], []], 0.5) is None


@pytest.mark.parametrize(("q", "between", "rho"), [(0.5, 0.0, 0.0), (0.5, 1.0, 0.5), (0.9, 1.0, 0.8)])
def test_an_interval_misses_the_true_percentile_as_seldom_as_it_says(q: float, between: float, rho: float) -> None:
    """300 runs of 64 blocks with 20 samples each, normal within and between blocks, whose neighbours have the
    correlation `rho`. At an error of 2.5 % a side more than 15 misses would lie three standard errors out.
    """
    from scipy.stats import norm

    noise = np.random.default_rng(5)
    true = float(norm.ppf(q)) * np.hypot(1.0, between)
    misses = [0, 0]
    for _ in range(300):
        common = noise.normal(size=64)
        for i in range(1, 64):
            common[i] = rho * common[i - 1] + np.sqrt(1 - rho**2) * common[i]
        estimate = quantile((common[:, None] * between + noise.normal(size=(64, 20))).tolist(), q, 0.025)
        assert estimate is not None
        misses[0] += estimate.low is not None and estimate.low > true
        misses[1] += estimate.high is not None and estimate.high < true
    assert max(misses) <= 15


@given(
    st.lists(st.lists(st.sampled_from([1.0, 1.5, 2.0, 7.25]), max_size=6), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_samples_are_worth_what_counting_them_group_by_group_gives(groups: list[list[float]], q: float) -> None:
    """Korn and Graubard's effective number, counted in lists, over the square of the factor of neighbours."""
    filled = [group for group in groups if group]
    n, count = sum(map(len, filled)), len(filled)
    if n == count or count < 3:
        return
    value = float(np.quantile(np.concatenate(filled), q))
    everything = sorted(x for g in filled for x in g)
    ranks = [sum((everything.index(x) + n - everything[::-1].index(x) + 1) / 2 for x in g) for g in filled]
    sums: list[list[float]] = [
        [sum(x <= value for x in g) for g in filled],
        [sum(x < value for x in g) for g in filled],
        ranks,
    ]
    residuals = [np.array(of) - sum(of) / n * np.array([len(g) for g in filled]) for of in sums]
    effects = [count / (count - 1) * float(r @ r) / (n * q * (1 - q)) for r in residuals[:2]]
    scale = (t_quantile(1 - ERROR, n - 1) / t_quantile(1 - ERROR, count - 1)) ** 2
    alike = max(map(neighbours_factor, residuals)) ** 2
    blocks = Blocks.of(groups)
    assert blocks is not None
    expected = n / max(1.0, *effects) / alike * scale
    assert effective_number(blocks, value, q, ERROR) in (max(int(expected * r), 1) for r in (1 - 1e-9, 1 + 1e-9))

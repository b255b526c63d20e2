"""Percentiles with intervals: exact where samples are independent, and honest where those of a block are alike."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.requests.percentiles import ERROR, Quantile, effective_number, quantiles, rank_shares
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
    short, enough = ([[float(i)] for i in range(n)] for n in (562, 563))
    assert (estimate := quantile(short, 0.99)) is not None and estimate.high is None and estimate.low is not None
    assert (estimate := quantile(enough, 0.99)) is not None and estimate.high == 562.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_percentile_is_numpys_and_lies_within_its_bounds(samples: list[float], q: float) -> None:
    estimate = quantile([[x] for x in samples], q)
    assert estimate is not None and estimate.samples == len(samples)
    assert estimate.value == pytest.approx(np.percentile(samples, 100 * q))
    assert estimate.low is None or estimate.low <= estimate.value
    assert estimate.high is None or estimate.high >= estimate.value


def test_stalls_of_whole_blocks_leave_a_tail_open_that_scattered_ones_decide() -> None:
    """2 % of the samples are slow in both: spread over all blocks, or two blocks of a hundred."""
    scattered = [[20.0, *[1.0 + i / 1000 for i in range(49)]] for _ in range(100)]
    stalled = [[20.0 if block < 2 else 1.0 + i / 1000 for i in range(50)] for block in range(100)]
    one, other = quantile(scattered, 0.99), quantile(stalled, 0.99)
    assert one is not None and other is not None and one.value == other.value == 20.0
    assert one.low == 20.0, "the p99 is proven to be slow"
    assert other.low is not None and other.low < 2.0, "two blocks of a hundred prove nothing of the p99"


def test_samples_of_two_blocks_have_no_interval() -> None:
    estimate = quantile([[1.0, 2.0] * 500, [1.5, 2.5] * 500], 0.5)
    assert estimate is not None and estimate.low is None and estimate.high is None
    assert quantile([[], []], 0.5) is None


@pytest.mark.parametrize(("q", "between"), [(0.5, 0.0), (0.5, 1.0), (0.9, 1.0)])
def test_an_interval_misses_the_true_percentile_as_seldom_as_it_says(q: float, between: float) -> None:
    """600 runs of 24 blocks with 40 samples each, normal within and between blocks; at an error of 2.5 % a side a
    share of misses above 4.5 % would lie three standard errors out.
    """
    from scipy.stats import norm

    noise = np.random.default_rng(5)
    true = float(norm.ppf(q)) * np.hypot(1.0, between)
    misses = [0, 0]
    for _ in range(600):
        blocks = noise.normal(size=(24, 1)) * between + noise.normal(size=(24, 40))
        estimate = quantile(blocks.tolist(), q, 0.025)
        assert estimate is not None and estimate.low is not None and estimate.high is not None
        misses[0] += estimate.low > true
        misses[1] += estimate.high < true
    assert max(misses) / 600 <= 0.045


@given(
    st.lists(st.lists(st.sampled_from([1.0, 1.5, 2.0, 7.25]), max_size=6), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_samples_are_worth_what_counting_them_group_by_group_gives(groups: list[list[float]], q: float) -> None:
    """Korn and Graubard's effective number, counted in lists."""
    filled = [group for group in groups if group]
    n, count = sum(map(len, filled)), len(filled)
    if n == count or count < 3:
        return
    value = float(np.quantile(np.concatenate(filled), q))
    effects = []
    for below in ([sum(x <= value for x in g) for g in filled], [sum(x < value for x in g) for g in filled]):
        residual = np.array([b - sum(below) / n * len(g) for b, g in zip(below, filled, strict=True)])
        effects.append(count / (count - 1) * float(residual @ residual) / (n * q * (1 - q)))
    scale = (t_quantile(1 - ERROR, n - 1) / t_quantile(1 - ERROR, count - 1)) ** 2
    expected = max(int(n / max(1.0, *effects) * scale), 1)
    sizes = np.array([len(group) for group in filled], float)
    assert effective_number(np.concatenate(filled), sizes, value, q, ERROR) == expected

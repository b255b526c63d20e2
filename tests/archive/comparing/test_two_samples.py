"""Ratios of two runs, against scipy and against numeric derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.simulations.error_rates import bound
from bench.simulations.gate_simulation import Flags
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.archive.comparing.two_samples import by_prompt_set, difference, log_ratio, log_ratio_of_ratios, of_mean
from specgate.contract import BetweenRuns

values = st.lists(st.floats(-5, 5).map(lambda x: round(x, 6)), min_size=3, max_size=12).filter(
    lambda v: len(set(v)) > 1
)
clusters = st.dictionaries(
    st.tuples(st.integers(0, 9), st.integers(0, 3)),
    st.integers(1, 20).flatmap(lambda steps: st.tuples(st.integers(steps, 4 * steps), st.just(steps))),
    min_size=3,
)


@given(values)
def test_the_mean_has_the_t_interval_of_scipy(sample: list[float]) -> None:
    interval = of_mean(sample)
    expected = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
    assert interval is not None and interval.interval() == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(values, values)
def test_the_difference_of_two_means_has_welchs_interval(a: list[float], b: list[float]) -> None:
    one, other = of_mean(a), of_mean(b)
    assert one is not None and other is not None
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert difference(one, other).interval() == pytest.approx((expected.low, expected.high), abs=1e-8)


rounds = st.lists(st.tuples(st.integers(0, 5), st.floats(-3, 3)), min_size=8, max_size=40)


@given(rounds, st.integers(2, 4))
def test_a_prompt_set_counts_once_however_often_it_ran(figures: list[tuple[int, float]], times: int) -> None:
    assert by_prompt_set(figures * times) == pytest.approx(by_prompt_set(figures))


@given(rounds, rounds)
def test_paired_prompt_sets_cancel_what_both_runs_share(a: list[tuple[int, float]], b: list[tuple[int, float]]) -> None:
    """A difference between prompts that is in both runs changes neither the paired ratio nor its interval."""
    one, other = by_prompt_set(a), by_prompt_set(b)
    harder = [{key: log + 10.0 * key for key, log in side.items()} for side in (one, other)]
    interval, again = log_ratio(one, other, paired=True), log_ratio(*harder, paired=True)
    assert (interval is None) == (again is None) == (len(one.keys() & other.keys()) < 3)
    if interval and again:
        assert again.interval() == pytest.approx(interval.interval(), abs=1e-6)


@given(rounds, rounds)
def test_prompt_sets_of_two_sources_have_welchs_interval(
    a: list[tuple[int, float]], b: list[tuple[int, float]]
) -> None:
    one, other = by_prompt_set(a), by_prompt_set(b)
    interval = log_ratio(one, other, paired=False)
    if interval is not None and interval.error > 1e-6:
        expected = stats.ttest_ind(list(other.values()), list(one.values()), equal_var=False).confidence_interval(0.95)
        assert interval.interval() == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_two_processes_of_one_build_are_called_different_no_more_often_than_asked_for() -> None:
    """Processes differ by 0.45 %, blocks by 0.02 %: eight prompt sets alone would call nearly every pair different."""
    noise, runs = np.random.default_rng(6), 2000
    shifts = noise.normal(0, 0.0045, (runs, 2))
    sides = shifts[:, :, None] + noise.normal(0, 0.0002, (runs, 2, 8))
    means = [of_mean((b - a).tolist()) for a, b in sides]

    def told(between: tuple[BetweenRuns, BetweenRuns] | None) -> Flags:
        return np.asarray([not low <= 0 <= high for e in means if e for low, high in [e.interval(0.025, between)]])

    assert bound(told(None))[1] > 0.9
    assert bound(told((ASSUMED, ASSUMED)))[1] <= 0.05
    assert bound(told((BetweenRuns(0.0045, 4), ASSUMED)))[1] <= 0.05


def test_fewer_than_three_values_or_prompts_have_no_estimate() -> None:
    assert of_mean([1.0, 2.0]) is None
    few = {(0, 0): (3.0, 2.0), (1, 0): (3.0, 2.0)}
    assert log_ratio_of_ratios(few, few, paired=True) is None


@given(clusters)
def test_a_run_beside_itself_is_exactly_as_long(figures: dict[tuple[int, int], tuple[float, float]]) -> None:
    same = log_ratio_of_ratios(figures, figures, paired=True)
    assert same is not None and same.interval() == (0.0, 0.0)


@given(clusters, clusters)
def test_unpaired_ratios_have_the_ratio_of_their_sums(
    a: dict[tuple[int, int], tuple[float, float]], b: dict[tuple[int, int], tuple[float, float]]
) -> None:
    interval = log_ratio_of_ratios(a, b, paired=False)
    r_a, r_b = (sum(n for n, _ in side.values()) / sum(d for _, d in side.values()) for side in (a, b))
    assert interval is not None and math.exp(interval.mean) == pytest.approx(r_b / r_a)


@given(clusters)
def test_the_paired_error_is_that_of_the_numeric_derivatives(a: dict[tuple[int, int], tuple[float, float]]) -> None:
    """Each prompt's weight is nudged; how far ln(r_b / r_a) then moves is its share of the error."""
    b = {key: (n + (i * 7 % 5), d) for i, (key, (n, d)) in enumerate(a.items())}

    def log_ratio(weights: dict[tuple[int, int], float]) -> float:
        sums = [[sum(weights[k] * side[k][i] for k in side) for i in (0, 1)] for side in (a, b)]
        return math.log(sums[1][0] / sums[1][1]) - math.log(sums[0][0] / sums[0][1])

    nudge, ones = 1e-6, dict.fromkeys(a, 1.0)
    moves = [(log_ratio({**ones, k: 1 + nudge}) - log_ratio({**ones, k: 1 - nudge})) / (2 * nudge) for k in a]
    expected = math.sqrt(len(a) / (len(a) - 1) * sum(m * m for m in moves))
    interval = log_ratio_of_ratios(a, b, paired=True)
    assert interval is not None and interval.error == pytest.approx(expected, abs=1e-6)


def test_only_prompts_that_both_have_are_paired() -> None:
    a = {(i, 0): (2.0 + i, 2.0) for i in range(4)}
    b = {(i, 0): (2.0 + i, 2.0) for i in range(1, 5)}
    shared = {key: a[key] for key in a if key in b}
    assert log_ratio_of_ratios(a, b, paired=True) == log_ratio_of_ratios(shared, shared, paired=True)

"""Intervals against scipy, the textbook formula for balanced orders, and their own promise: coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from bench.simulations.first_statistics import bound, log_ratios, orders, prompts, sequential
from specgate.analysis.stats import (
    ALPHA,
    LOOKS,
    MIN_PAIRS,
    POWER,
    Pairs,
    cluster_interval,
    decide,
    minimum_detectable_effect,
    order_interval,
    pairs_needed,
)

ratios = st.floats(-1.0, 1.0).map(lambda x: round(x, 6))
samples = st.lists(ratios, min_size=MIN_PAIRS, max_size=20)


@given(samples)
def test_pairs_of_one_order_get_the_plain_t_interval(d: list[float]) -> None:
    found = order_interval(d, [1] * len(d))
    assert found is not None
    se = float(np.std(d, ddof=1) / math.sqrt(len(d)))
    half = float(scipy_stats.t.ppf(0.975, len(d) - 1)) * se
    assert (found.low, found.high) == pytest.approx((np.mean(d) - half, np.mean(d) + half), abs=1e-9)


@given(st.lists(ratios, min_size=2, max_size=10), st.lists(ratios, min_size=2, max_size=10))
def test_balanced_orders_agree_with_the_textbook_formula(first: list[float], second: list[float]) -> None:
    n = min(len(first), len(second))
    d, o = np.array([*first[:n], *second[:n]]), np.array([1] * n + [-1] * n)
    mean, effect = d.mean(), (d * o).mean()
    residual = d - mean - effect * o
    half = scipy_stats.t.ppf(0.975, 2 * n - 2) * math.sqrt((residual @ residual) / (2 * n - 2) / (2 * n))
    found = order_interval(d.tolist(), o.tolist())
    assert found is not None
    assert (found.mean, found.order_effect) == pytest.approx((mean, effect), abs=1e-9)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=1e-9)


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
        found = order_interval((0.3 + 0.05 * np.array(orders) + noise.normal(0, 0.02, 8)).tolist(), orders)
        assert found is not None
        covered += found.low <= 0.3 <= found.high
    assert 0.93 < covered / 800 < 0.97


def test_clusters_of_correlated_steps_widen_the_interval_until_it_covers() -> None:
    """Acceptance differs by prompt: an interval that took steps for independent would be several times too narrow."""
    noise = np.random.default_rng(12)
    covered, widths = 0, []
    for _ in range(400):
        rate = noise.beta(6, 4, 30)
        found = cluster_interval(noise.binomial(60, rate).tolist(), [60] * 30)
        assert found is not None
        covered += found.low <= 0.6 <= found.high
        widths.append(found.high - found.low)
    naive = 2 * 1.96 * math.sqrt(0.6 * 0.4 / (60 * 30))
    assert 0.92 < covered / 400 < 0.98
    assert float(np.mean(widths)) > 2 * naive


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=MIN_PAIRS, max_size=12))
def test_the_cluster_mean_is_the_ratio_of_the_sums(sums: list[tuple[int, int]]) -> None:
    numerators, denominators = zip(*sums, strict=True)
    found = cluster_interval(numerators, denominators)
    assert found is not None
    assert found.mean == pytest.approx(sum(numerators) / sum(denominators))
    assert found.low <= found.mean <= found.high


def test_clusters_without_steps_give_no_interval() -> None:
    assert cluster_interval([0, 0, 0], [0, 0, 0]) is None


@given(st.floats(0.005, 0.1), st.floats(0.005, 0.1), st.integers(MIN_PAIRS, 30))
def test_the_pairs_asked_for_are_just_enough(sd: float, gap: float, have: int) -> None:
    def half(n: int) -> float:
        return float(scipy_stats.t.ppf(0.975, n - 2)) * sd / math.sqrt(n)

    total = have + pairs_needed(sd, gap, have)
    assert half(total) <= gap
    assert total == have or half(total - 1) > gap


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


@given(st.lists(ratios, min_size=8, max_size=8), st.lists(ratios, min_size=8, max_size=8))
def test_two_roles_are_compared_through_the_baseline_they_share(a: list[float], b: list[float]) -> None:
    turns = list(range(8))
    left = Pairs(a, orders(8), [0] * 8, turns)
    right = Pairs(b[:3] + b[4:], orders(8)[:3] + orders(8)[4:], [0] * 7, turns[:3] + turns[4:])
    both = left.over(right)
    assert both.turns == right.turns and both.orders == right.orders
    assert both.log_ratios == pytest.approx([x - y for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != 3])


# ── looks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pairs(d: list[float]) -> Pairs:
    return Pairs(d, orders(len(d)), [0] * len(d), list(range(len(d))))


def test_the_first_look_that_decides_settles_it_whatever_comes_after() -> None:
    d = [0.10, 0.11, 0.09, 0.10, 0.11, 0.09]
    first = decide(pairs(d), 6, LOOKS, 0.0)
    assert (first.side, first.look, first.pairs, first.alpha) == ("above", 1, 6, ALPHA / 4)
    assert decide(pairs(d + [-9.0] * 18), 24, LOOKS, 0.0) == first


def test_between_looks_nothing_is_asked() -> None:
    d = [0.5, -0.5] * 3 + [0.1, 0.11, 0.09]
    assert decide(pairs(d), 9, LOOKS, 0.0) == decide(pairs(d[:6]), 6, LOOKS, 0.0)
    assert decide(pairs(d[:5]), 5, LOOKS, 0.0).interval is None


def test_a_single_look_spends_all_of_alpha() -> None:
    d = [0.01, 0.03, 0.02, 0.04]
    found = decide(pairs(d), 4, (4,), 0.0)
    assert (found.alpha, found.interval) == (ALPHA, order_interval(d, orders(4)))


def test_pairs_that_emitted_nothing_do_not_move_the_looks() -> None:
    d = [0.10, 0.11, 0.09, 0.10, 0.11]
    found = decide(Pairs(d, [1, -1, 1, -1, 1], [0] * 5, [0, 1, 3, 4, 5]), 6, LOOKS, 0.0)
    assert (found.side, found.look, found.pairs) == ("above", 1, 5)


@pytest.mark.parametrize(("sets", "looks"), [(1, LOOKS), (4, (8, 16, 24))])
def test_the_simulated_rule_is_the_one_that_judges(sets: int, looks: tuple[int, ...]) -> None:
    d = log_ratios(60, -0.01, 0.006, np.random.default_rng(3), prompts(sets))
    fast = sequential(d, -0.02, prompts(sets), looks)
    slow = [decide(Pairs(row, orders(24), prompts(sets), range(24)), 24, looks, -0.02) for row in d.tolist()]
    assert [x.side == "above" for x in slow] == fast.above.tolist()
    assert [x.side == "below" for x in slow] == fast.below.tolist()
    assert [x.pairs for x in slow] == fast.pairs.tolist()


@pytest.mark.parametrize(("sets", "looks"), [(1, LOOKS), (4, (8, 16, 24))])
def test_on_the_floor_itself_each_wrong_verdict_stays_below_its_alpha(sets: int, looks: tuple[int, ...]) -> None:
    """Heavy tails, drift, settling, a slot effect and differing prompts notwithstanding."""
    d = log_ratios(10_000, 0.0, 0.006, np.random.default_rng(4), prompts(sets))
    found = sequential(d, 0.0, prompts(sets), looks)
    assert bound(found.above)[2] < ALPHA
    assert bound(found.below)[2] < ALPHA


def test_unsplit_alpha_would_not_have_stayed_below_it() -> None:
    d = log_ratios(10_000, 0.0, 0.006, np.random.default_rng(5), prompts(1))
    assert bound(sequential(d, 0.0, prompts(1), LOOKS, alpha=4 * ALPHA).below)[1] > ALPHA


def test_an_unchanged_build_passes_soon_and_a_slower_one_fails_in_time() -> None:
    noise, margin = np.random.default_rng(6), -math.log1p(0.02)
    same = sequential(log_ratios(5000, 0.0, 0.006, noise, prompts(1)), margin, prompts(1))
    worse = sequential(log_ratios(5000, -math.log1p(0.03), 0.006, noise, prompts(1)), margin, prompts(1))
    assert same.pairs[same.above].mean() <= 8 and same.above.mean() > 0.999
    assert bound(worse.below)[2] >= 0.99 and not worse.above.any()


def test_the_minimum_detectable_effect_is_detected_as_often_as_promised() -> None:
    noise = np.random.default_rng(7)
    effect = minimum_detectable_effect(0.01, 16, 14)
    d = effect + noise.normal(0, 0.01, (4000, 16))
    found = sequential(d, 0.0, [0] * 16, (16,))
    assert found.above.mean() == pytest.approx(POWER, abs=0.03)

"""Differences of two builds against scipy, numerical derivatives, the jackknife and the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from bench.simulations import ab_simulation as simulation
from specgate.analysis.two_builds.estimates import FITTED_FROM, LEAST, Counts, Difference, over_processes, over_prompts

ratios = st.floats(-0.2, 0.2).map(lambda x: round(x, 6))
samples = st.lists(ratios, min_size=LEAST, max_size=12).filter(lambda d: np.std(d) > 1e-7)
ordered = st.tuples(*[st.lists(ratios, min_size=FITTED_FROM, max_size=7)] * 2).filter(
    lambda d: min(map(np.std, d)) > 1e-7
)
Side = list[tuple[float, float]]
sides = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 128)), min_size=LEAST, max_size=10)
both_sides = st.integers(LEAST, 10).flatmap(
    lambda n: st.tuples(*[st.lists(st.tuples(st.integers(1, 600), st.integers(1, 128)), min_size=n, max_size=n)] * 2)
)


def counts(side: Sequence[tuple[float, float]]) -> Counts:
    return {(i // 2, i % 2): pair for i, pair in enumerate(side)}


def of_prompts(old: Sequence[tuple[float, float]], new: Sequence[tuple[float, float]]) -> Difference:
    difference = over_prompts(counts(old), counts(new))
    assert difference is not None
    return difference


def log_ratio(side: np.ndarray, weights: np.ndarray) -> float:
    """ln of Σ numerators / Σ denominators, a prompt counted `weights` times."""
    return float(np.log(weights @ side[:, 0] / (weights @ side[:, 1])))


def prompts(n: int, seed: int) -> tuple[Side, Side]:
    """Accepted tokens + steps and steps of `n` prompts; the new build's texts differ by a few percent."""
    source = np.random.default_rng(seed)
    steps = source.integers(90, 129, n)
    lengths = source.uniform(2.0, 5.0, n)
    old = [(float(round(a * s)), float(s)) for a, s in zip(lengths, steps, strict=True)]
    new = [(float(round(above * source.normal(1.01, 0.05))), below) for above, below in old]
    return old, new


# ── over processes ───────────────────────────────────────────────────────────────────────────────────────────────────


def of_processes(d: Sequence[float], firsts: Sequence[str] = ()) -> Difference:
    difference = over_processes({i: [x] for i, x in enumerate(d)}, dict(enumerate(firsts)))
    assert difference is not None
    return difference


@given(samples)
def test_without_an_order_a_time_has_the_interval_and_the_p_value_of_the_t_test(d: list[float]) -> None:
    difference = of_processes(d)
    reference = scipy_stats.ttest_1samp(d, 0.0, alternative="greater")
    assert difference.chance() == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-12)
    low, high = scipy_stats.ttest_1samp(d, 0.0).confidence_interval(0.99)
    half = difference.half_width(0.005)
    assert (difference.mean - half, difference.mean + half) == pytest.approx((low, high), rel=1e-6, abs=1e-12)


@given(ordered)
def test_with_an_order_it_has_those_of_the_test_that_the_mean_of_both_orders_is_zero(
    both: tuple[list[float], list[float]],
) -> None:
    """m₁ + m₂ = 0 is what the two-sample t-test with one sample negated asks."""
    d, firsts = [*both[0], *both[1]], ["old"] * len(both[0]) + ["new"] * len(both[1])
    difference, negated = of_processes(d, firsts), [-x for x in both[1]]
    reference = scipy_stats.ttest_ind(both[0], negated, alternative="greater")
    assert difference.chance() == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-12)
    low, high = scipy_stats.ttest_ind(both[0], negated).confidence_interval(0.99)
    half = difference.half_width(0.005)
    assert (difference.mean - half, difference.mean + half) == pytest.approx((low / 2, high / 2), rel=1e-6, abs=1e-12)


@given(ordered, st.floats(-0.1, 0.1))
def test_the_order_of_starting_moves_neither_the_mean_nor_its_error(
    both: tuple[list[float], list[float]], effect: float
) -> None:
    firsts = ["old"] * len(both[0]) + ["new"] * len(both[1])
    plain = of_processes([*both[0], *both[1]], firsts)
    moved = of_processes([*(x + effect for x in both[0]), *(x - effect for x in both[1])], firsts)
    assert (moved.mean, moved.sd, moved.fitted) == pytest.approx((plain.mean, plain.sd, 2), abs=1e-9)


def test_the_order_is_fitted_only_where_each_side_was_first_three_times_and_all_orders_are_known() -> None:
    d = [0.1, 0.2, 0.4, 0.3, 0.2, 0.5]
    assert of_processes(d, ["old", "new", "new", "old", "new", "old"]).fitted == 2
    for firsts in (["old", "new", "new", "new", "new", "old"], ["old", "new", "new", "old", "old"], []):
        assert of_processes(d, firsts) == of_processes(d)


@given(st.lists(st.lists(ratios, min_size=1, max_size=4), min_size=LEAST, max_size=8), st.integers(2, 5))
def test_a_process_pair_counts_once_however_many_blocks_it_has(pairs: list[list[float]], times: int) -> None:
    firsts = {i: ("old", "new")[i % 2] for i in range(len(pairs))}
    once, often = (over_processes({i: blocks * k for i, blocks in enumerate(pairs)}, firsts) for k in (1, times))
    assert once is not None and often is not None
    assert often.n == once.n == len(pairs)
    assert (often.mean, often.sd) == pytest.approx((once.mean, once.sd), abs=1e-12)


def test_fewer_than_three_process_pairs_give_no_difference_and_pairs_without_blocks_do_not_count() -> None:
    assert over_processes({0: [0.1], 1: [0.2], 2: []}, {}) is None
    difference = over_processes({0: [0.1], 1: [0.2], 2: [], 3: [0.3]}, {})
    assert difference is not None and difference.n == 3


@given(samples)
def test_the_chances_of_both_directions_add_up_to_one(d: list[float]) -> None:
    difference = of_processes(d)
    assert difference.chance() + difference.mirrored().chance() == pytest.approx(1.0)
    assert difference.mirrored().mirrored() == difference


def test_a_difference_without_spread_is_certain_and_none_at_all_is_no_difference() -> None:
    certain, none = Difference(0.01, 0.0, 8), Difference(0.0, 0.0, 8)
    assert (certain.chance(), certain.mirrored().chance()) == (0.0, 1.0)
    assert (none.chance(), none.mirrored().chance()) == (1.0, 1.0)


@given(samples, st.floats(1e-3, 0.05))
def test_what_is_assumed_widens_the_interval_and_the_p_value_is_where_the_interval_ends_at_zero(
    d: list[float], assumed: float
) -> None:
    plain, wider = of_processes(d), replace(of_processes(d), assumed=assumed)
    z = scipy_stats.norm.ppf(0.995)
    assert wider.half_width(0.005) == pytest.approx(math.hypot(plain.half_width(0.005), z * assumed), rel=1e-9)
    chance = wider.chance()
    assert chance + wider.mirrored().chance() == pytest.approx(1.0)
    if 1e-11 < chance < 0.5:
        assert wider.half_width(chance) == pytest.approx(wider.mean, rel=1e-6, abs=1e-12)
    alone = replace(wider, sd=0.0).chance()
    assert alone == pytest.approx(scipy_stats.norm.sf(wider.mean / assumed), rel=1e-6, abs=1e-11)


# ── over prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(sides)
def test_the_same_counts_on_both_sides_are_exactly_no_difference(side: Side) -> None:
    difference = of_prompts(side, side)
    assert (difference.mean, difference.error, difference.n) == (0.0, 0.0, len(side))


@given(both_sides)
def test_swapping_the_sides_mirrors_the_difference(both: tuple[Side, Side]) -> None:
    old, new = both
    there, back = of_prompts(old, new), of_prompts(new, old).mirrored()
    assert (there.mean, there.sd, there.n) == pytest.approx((back.mean, back.sd, back.n), abs=1e-12)


@given(both_sides, st.floats(0.01, 100.0))
def test_counting_in_another_unit_changes_nothing(both: tuple[Side, Side], unit: float) -> None:
    old, new = both
    plain = of_prompts(old, new)
    scaled = of_prompts(old, [(above * unit, below * unit) for above, below in new])
    assert (scaled.mean, scaled.sd) == pytest.approx((plain.mean, plain.sd), abs=1e-9)


@given(both_sides)
def test_the_error_is_that_of_the_numerical_derivatives_by_the_weights_of_prompts(both: tuple[Side, Side]) -> None:
    """The infinitesimal jackknife (Efron 1982, chapter 6): error² = n / (n − 1) · Σ (∂ ln ratio / ∂ weight)²."""
    old, new = (np.array(side, float) for side in both)
    n, step = len(old), 1e-5
    slopes = []
    for i in range(n):
        up, down = np.ones(n), np.ones(n)
        up[i] += step
        down[i] -= step
        moved = [log_ratio(new, w) - log_ratio(old, w) for w in (up, down)]
        slopes.append((moved[0] - moved[1]) / (2 * step))
    difference = of_prompts(*both)
    assert difference.mean == pytest.approx(log_ratio(new, np.ones(n)) - log_ratio(old, np.ones(n)), abs=1e-9)
    assert difference.error == pytest.approx(math.sqrt(n / (n - 1) * np.square(slopes).sum()), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_the_error_is_near_that_of_the_jackknife_and_of_the_bootstrap(seed: int) -> None:
    old, new = prompts(60, seed)
    a, b = np.array(old), np.array(new)
    left_out = [log_ratio(b, w) - log_ratio(a, w) for w in 1.0 - np.eye(60)]
    jackknife = math.sqrt(59 * np.var(left_out))
    draws = np.random.default_rng(seed).multinomial(60, [1 / 60] * 60, size=4000).astype(float)
    bootstrap = float(np.std([log_ratio(b, w) - log_ratio(a, w) for w in draws]))
    error = of_prompts(old, new).error
    assert error == pytest.approx(jackknife, rel=0.03)
    assert error == pytest.approx(bootstrap, rel=0.06)  # 4,000 draws know a deviation to 1.1 %


def test_what_prompts_have_in_common_is_no_noise() -> None:
    old = [(100.0 + 40 * i, 100.0) for i in range(8)]
    new = [(above * 1.02, below) for above, below in old]
    difference = of_prompts(old, new)
    assert difference.mean == pytest.approx(math.log(1.02))
    assert difference.error == pytest.approx(0.0, abs=1e-12)


def test_only_prompts_of_both_sides_count() -> None:
    old, new = counts([(9, 3), (8, 3), (7, 3), (500, 1)]), counts([(9, 3), (8, 3), (8, 3)])
    difference, same = over_prompts(old, new), over_prompts({p: old[p] for p in new}, new)
    assert difference == same and difference is not None and difference.n == 3


def test_too_few_prompts_or_nothing_to_count_give_no_difference() -> None:
    enough = counts([(9, 3), (8, 3), (7, 3)])
    assert over_prompts(counts([(9, 3), (8, 3)]), enough) is None
    assert over_prompts({}, enough) is None
    assert over_prompts(counts([(9, 0), (8, 0), (7, 0)]), enough) is None
    assert over_prompts(enough, counts([(0, 3), (0, 3), (0, 3)])) is None


# ── the simulation ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [3, 4, 8, 12])
def test_the_simulation_estimates_as_the_judge_does(n: int) -> None:
    source = np.random.default_rng(n)
    times, firsts = source.normal(0.0, 0.003, (200, n, 2)), source.choice([-1.0, 1.0], (200, n))
    old, new = simulation.acceptances(0.5, 200, n, source)
    estimated, lengths = simulation.over_processes(times, firsts), simulation.over_prompts(old, new)
    for i in range(200):
        named = ["new" if sign > 0 else "old" for sign in firsts[i]]
        for quantity in range(2):
            difference = of_processes(times[i, :, quantity].tolist(), named)
            theirs = [float(getattr(estimated, name)[i, quantity]) for name in ("mean", "error", "freedom")]
            assert theirs == pytest.approx([difference.mean, difference.error, difference.freedom], rel=1e-9, abs=1e-12)
        length = of_prompts(*([(128 * x, 128.0) for x in side[i].tolist()] for side in (old, new))).mirrored()
        theirs = [float(getattr(lengths, name)[i, 0]) for name in ("mean", "error", "freedom")]
        assert theirs == pytest.approx([length.mean, length.error, length.freedom], rel=1e-6, abs=1e-12)

"""Change points: exact where it can be enumerated, within its budget where it is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.archive.history import (
    BUDGET,
    MIN_SIDE,
    fewest_readings,
    largest_step,
    least_p,
    plan,
    standardised_steps,
    with_changes,
)
from specgate.contract import Cell, Point, Role
from specgate.contract.comparisons import Reading, Series


def series_of(values: Sequence[float]) -> Series:
    readings = tuple(Reading(n, float(value), None, None) for n, value in enumerate(values))
    return Series(Cell(Point("s", "b", 64, 1), Role(3)), "output_tok_s", "ground", readings)


def marked(*values: Sequence[float]) -> list[list[int]]:
    """The change points of several series that are searched together."""
    return [[c.at for c in s.changes or ()] for s in with_changes([series_of(v) for v in values])]


def noisy(seed: int, *levels: float, each: int = 10, sd: float = 0.01) -> list[float]:
    noise = np.random.default_rng(seed)
    return [level * math.exp(noise.normal(0, sd)) for level in levels for _ in range(each)]


readings = st.lists(st.floats(-3, 3).map(lambda x: round(x, 4)), min_size=6, max_size=14)


@given(readings)
def test_the_statistic_is_the_standardised_difference_of_two_means(logs: list[float]) -> None:
    result = standardised_steps(np.asarray(logs)[None, :])[0]
    n = len(logs)
    for place, step in zip(range(MIN_SIDE, n - MIN_SIDE + 1), result, strict=True):
        before, after = np.mean(logs[:place]), np.mean(logs[place:])
        assert step == pytest.approx(abs(before - after) * math.sqrt(place * (n - place) / n), abs=1e-9)


def test_p_is_the_share_of_all_orders_with_as_large_a_step() -> None:
    """Six readings have one place, in the middle: their orders are the 20 ways to choose the first three."""
    logs = [0.0, 0.3, 0.1, 0.9, 1.1, 0.2]
    observed = abs(np.mean(logs[:3]) - np.mean(logs[3:]))
    sums = [sum(logs[i] for i in chosen) for chosen in combinations(range(6), 3)]
    exact = np.mean([abs(s / 3 - (sum(logs) - s) / 3) >= observed - 1e-12 for s in sums])
    at, p = largest_step(np.asarray(logs), 1.0)
    assert at == 3 and p == pytest.approx(exact, abs=0.04)


@pytest.mark.parametrize("readings", [6, 8, 12, 15])
def test_no_step_can_be_rarer_than_the_least_p(readings: int) -> None:
    clean = np.asarray([0.0] * (readings // 2) + [1.0] * (readings - readings // 2)) + np.linspace(0, 1e-6, readings)
    _, p = largest_step(clean, least_p(readings) * 2)
    assert p == pytest.approx(least_p(readings), rel=0.6)


def test_a_step_is_found_where_it_is_with_the_levels_beside_it() -> None:
    (result,) = with_changes([series_of(noisy(1, 100.0, 110.0))])
    assert result.changes is not None
    (change,) = result.changes
    assert change.at == 10 and change.p <= BUDGET
    assert (change.before, change.after) == pytest.approx((100.0, 110.0), rel=0.02)


def test_two_steps_are_both_found_and_levels_end_at_the_next() -> None:
    (result,) = with_changes([series_of(noisy(2, 100.0, 120.0, 90.0, each=14))])
    assert result.changes is not None
    first, second = result.changes
    assert (first.at, second.at) == (14, 28)
    assert first.after == second.before == pytest.approx(120.0, rel=0.02)


def test_a_single_odd_run_is_no_change_of_level() -> None:
    values = noisy(3, 100.0, each=20)
    values[11] = 150.0
    assert marked(values) == [[]]


def test_values_that_never_differ_have_no_change() -> None:
    assert marked([3.05] * 20) == [[]]


@settings(max_examples=10, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 100))
def test_the_unit_of_a_figure_changes_nothing(factor: float, seed: int) -> None:
    values = noisy(seed, 10.0, 10.2)
    assert marked(values) == marked([factor * v for v in values])


def test_which_series_are_searched_depends_on_their_lengths_alone() -> None:
    assert plan([]) == plan([5, 5, 6]) == (0, 0)
    assert plan([fewest_readings()]) == (fewest_readings(), 1)
    assert plan([fewest_readings() - 1]) == (0, 0)
    assert plan([3, 20, 30]) == (20, 2)
    least, searched = plan([fewest_readings()] * 10 + [40])
    assert (least, searched) == (40, 1), "ten short series would leave none of them enough of the budget"
    short, long = with_changes([series_of(noisy(4, 1.0, each=5)), series_of(noisy(5, 1.0, each=20))])
    assert short.changes is None and long.changes == ()


def test_a_series_at_the_least_length_is_found_to_change_in_its_middle() -> None:
    n = fewest_readings()
    assert marked([1.0 + 0.001 * i for i in range(n // 2)] + [2.0 + 0.001 * i for i in range(n - n // 2)]) == [[n // 2]]


@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_false_marks_stay_within_the_budget(tails: str) -> None:
    """400 histories of two series without a change: at 0.5 % more than 8 marked ones have a chance below 1 in 3,000."""
    noise = np.random.default_rng(7)
    false = 0
    for _ in range(400):
        draw = noise.normal(0, 0.01, (2, 16)) if tails == "normal" else 0.01 * noise.standard_t(3, (2, 16))
        false += any(marked(*(np.exp(row) for row in draw)))
    assert false <= 8

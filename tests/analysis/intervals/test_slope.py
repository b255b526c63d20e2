"""The slope of figures over time is that of ordinary least squares, and seldom one where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulations.drift_simulation import NOISES, outcomes
from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS
from specgate.analysis.intervals.slope import reach, slope_of

figures = st.lists(st.floats(1, 8).map(lambda x: round(x, 3)), min_size=12, max_size=12)


def layout(sets: int = 3) -> tuple[list[float], list[int]]:
    """(requests in thousands, prompt sets) of 12 blocks."""
    return [i * 0.25 + (i % 2) * 0.05 for i in range(12)], [i % sets for i in range(12)]


@settings(max_examples=40)
@given(figures)
def test_it_is_the_slope_of_least_squares_with_a_mean_per_prompt_set(ys: list[float]) -> None:
    xs, sets = layout()
    slope = slope_of(ys, xs, sets)
    dummies = [[float(s == one) for one in range(3)] + [x] for s, x in zip(sets, xs, strict=True)]
    (*_, oracle), residual, *_ = np.linalg.lstsq(np.array(dummies), np.array(ys), rcond=None)
    assert slope is not None
    assert slope.slope == pytest.approx(oracle, abs=1e-9)
    assert slope.freedom == 12 - 4
    spread = np.array(xs) - np.array([np.mean([x for x, s in zip(xs, sets, strict=True) if s == one]) for one in sets])
    independent = np.sqrt(residual.sum() / 8 / (spread @ spread))
    assert slope.error >= independent * (1 - 1e-6) - 1e-9, "correlations can only add to it"


@settings(max_examples=40)
@given(figures, st.floats(-5, 5), st.floats(0.5, 4))
def test_what_prompts_accept_and_how_x_is_counted_changes_no_verdict(
    ys: list[float], shift: float, unit: float
) -> None:
    xs, sets = layout()
    plain = slope_of(ys, xs, sets)
    other = slope_of([y + shift * s for y, s in zip(ys, sets, strict=True)], [unit * x + shift for x in xs], sets)
    assert plain is not None and other is not None
    assert other.slope * unit == pytest.approx(plain.slope, abs=1e-6)
    assert other.error * unit == pytest.approx(plain.error, abs=1e-6)
    assert other.set_error * unit == pytest.approx(plain.set_error, abs=1e-6)


def test_figures_that_repeat_have_no_slope_and_no_interval() -> None:
    xs, sets = layout()
    slope = slope_of([2.1 + 0.3 * s for s in sets], xs, sets)
    assert slope is not None
    assert (slope.slope, slope.error, reach(slope.error, slope.freedom, slope.set_error, slope.sets, 0.001)) == (
        0,
        0,
        0,
    )


@pytest.mark.parametrize(("count", "sets"), [(4, 1), (6, 4), (8, 8)])
def test_too_few_blocks_give_none_and_prompt_sets_that_ran_once_count_as_noise(count: int, sets: int) -> None:
    xs, prompt_sets = [i / 10 for i in range(count)], [i % sets for i in range(count)]
    slope = slope_of([2.0 + i % 3 for i in range(count)], xs, prompt_sets)
    assert (slope is None) == (count == 4)
    if slope is not None:
        assert slope.freedom == count - 2 and slope.sets == 1


def test_no_slope_is_found_over_a_quantity_that_stands_still() -> None:
    assert slope_of([2.0, 2.1] * 6, [1.0] * 12, [0, 1] * 6) is None


@pytest.mark.parametrize("kind", ["AR(1) 0.9", "some texts part for good", "independent"])
def test_under_the_worst_noises_a_slope_is_seldom_found_where_there_is_none(kind: str) -> None:
    """Of 400 runs 1.4 and 2 are expected at most. More than 7 and 8 have a chance below 0.1 %."""
    falls, keeps = outcomes((8, 4), NOISES[kind], 400, np.random.default_rng(5))
    assert 4 * falls <= 7 and 4 * keeps <= 8, f"goals: {100 * FALSE_FAIL} and {100 * FALSE_PASS} %"


def test_a_fall_of_a_third_over_a_long_run_is_found() -> None:
    falls, _ = outcomes((8, 4), NOISES["independent"], 40, np.random.default_rng(5), fall_pct=33)
    assert falls > 80

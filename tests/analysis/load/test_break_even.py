"""The load at which speculation stops paying: the interval covers a known truth, and every answer is one that the
levels give.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.intervals.autocorrelation import fit
from specgate.analysis.load.break_even import Level, break_even_of, pays_up_to, support, sweep_curve
from specgate.contract import BetweenRuns

NOTHING_BETWEEN = BetweenRuns(0.0, None)
GRID = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SETS, ROUNDS = 4, 6


def exact(means: Sequence[float], error: float = 0.01, levels: Sequence[float] = GRID) -> list[Level]:
    """Levels with these mean log-ratios, each known to `error` with many degrees of freedom."""
    return [Level(x, m, error, 60, NOTHING_BETWEEN) for x, m in zip(levels, means, strict=False)]


def measured(source: random.Random, truth: Callable[[float], float], sd: float) -> list[Level]:
    """Levels as a run measures them: a few pairs with noise, in the orders of a plan."""
    values = []
    for level in GRID:
        places = [(s, r) for r in range(ROUNDS) for s in range(SETS)]
        d = [truth(level) + source.gauss(0, sd) for _ in places]
        orders = [1 if (s + r + s // 2) % 2 else -1 for s, r in places]
        known = fit(d, orders, [s for s, _ in places], list(range(len(places))))
        assert known is not None
        values.append(Level(level, known.mean, known.error, known.freedom, NOTHING_BETWEEN))
    return values


def falling(root: float, slope: float) -> Callable[[float], float]:
    """A log-ratio that falls by `slope` per doubling and is 0 at `root`."""
    return lambda level: slope * (math.log2(root) - math.log2(level))


def holds(levels: Sequence[Level], root: float) -> bool:
    """True if the interval of the break-even holds `root`."""
    break_even = break_even_of(levels)
    inside = (break_even.low or 0.0) <= root <= (break_even.high or math.inf)
    return inside and break_even.outcome not in ("everywhere", "nowhere")


@pytest.mark.parametrize(("root", "slope"), [(1.4, 0.02), (6.0, 0.02), (6.0, 0.15), (23.0, 0.15)])
def test_the_interval_holds_the_true_break_even_as_often_as_it_says(root: float, slope: float) -> None:
    """Eight independent pairs per level with 2 % noise, so that the error of each is known to 7 degrees of freedom.

    A true 95 % gives fewer than 179 or more than 198 of 200 in one of 1,000 tries (binomial).
    """
    source, truth, hits = random.Random(f"{root} {slope}"), falling(root, slope), 0
    for _ in range(200):
        pairs = {x: [truth(x) + source.gauss(0, 0.02) for _ in range(8)] for x in GRID}
        errors = {x: statistics.stdev(d) / math.sqrt(8) for x, d in pairs.items()}
        hits += holds([Level(x, statistics.fmean(pairs[x]), errors[x], 7, NOTHING_BETWEEN) for x in GRID], root)
    assert 179 <= hits <= 198


@pytest.mark.parametrize("bend", [-0.03, 0.03])
@pytest.mark.parametrize("root", [1.4, 6.0, 23.0])
def test_a_ratio_that_bends_is_followed_by_three_levels_or_more(root: float, bend: float) -> None:
    """A line between two levels is off by 0.06 doublings there, and three of four of its intervals miss."""
    source = random.Random(f"{root} {bend}")

    def truth(level: float) -> float:
        beyond = math.log2(level / root)
        return -0.12 * beyond + bend * beyond**2

    near = [x for x in GRID if abs(math.log2(x / root)) < 2]  # farther out, the parabola comes back to 0
    hits, errors = 0, []
    for _ in range(60):
        pairs = {x: [truth(x) + source.gauss(0, 0.01) for _ in range(8)] for x in near}
        spread = {x: statistics.stdev(d) / math.sqrt(8) for x, d in pairs.items()}
        levels = [Level(x, statistics.fmean(pairs[x]), spread[x], 7, NOTHING_BETWEEN) for x in near]
        hits += holds(levels, root)
        errors.append(math.log2((break_even_of(levels).value or 0.1) / root))
    assert hits >= 55 and abs(statistics.median(errors)) < 0.02


@pytest.mark.parametrize("order", [2, 3])
def test_the_curve_is_the_polynomial_through_the_levels_around(order: int) -> None:
    """By numpy's own fit through three levels at an end, through four inside."""
    means = [0.5, 0.42, 0.3, -0.1, -0.2, -0.6]
    along = sweep_curve(exact(means), 0.025)
    near = slice(0, 3) if order == 2 else slice(1, 5)
    fitted = np.polynomial.Polynomial.fit(np.log2(GRID[near]), means[near], order)
    inside = along.x < 1 if order == 2 else (along.x >= 2) & (along.x < 3)
    assert along.mean[inside] == pytest.approx(fitted(along.x[inside]))


def test_levels_close_to_each_other_do_not_make_the_curve_swing() -> None:
    assert support([1, 8, 9, 10, 32], 2) == [1, 2, 3, 4]
    assert support([4, 7.9, 8, 16], 2) == [0, 2, 3], "7.9 would count for more than the two levels beside the place"


def test_with_the_errors_that_a_run_has_the_interval_holds_it_no_less_often() -> None:
    """24 pairs per level in the orders of a plan. A run allows for pairs that resemble their neighbours."""
    source = random.Random(7)
    assert sum(holds(measured(source, falling(6.0, 0.1), 0.02), 6.0) for _ in range(40)) >= 34


def test_a_steep_crossing_is_found_between_the_levels_that_enclose_it() -> None:
    break_even = break_even_of(exact([0.5, 0.4, 0.3, 0.1, -0.1, -0.3]))
    assert (
        break_even.outcome == "crosses"
        and break_even.value is not None
        and break_even.low is not None
        and break_even.high is not None
    )
    assert break_even.value == pytest.approx(8 * math.sqrt(2))
    # By hand: around the root the line falls by 0.2 per doubling; Lagrange's weights are −1/16, 9/16, 9/16, −1/16.
    half = 1.97 * 0.01 * math.sqrt(2 * (81 + 1) / 256) / 0.2
    assert math.log2(break_even.value / break_even.low) == pytest.approx(half, abs=0.008)
    assert math.log2(break_even.high / break_even.value) == pytest.approx(half, abs=0.008)


@pytest.mark.parametrize(
    ("means", "outcome", "ends"),
    [
        ([0.5, 0.4, 0.3, 0.3, 0.2, 0.1], "everywhere", (None, None)),
        ([-0.1, -0.1, -0.2, -0.3, -0.3, -0.4], "nowhere", (None, None)),
        ([0.5, 0.3, 0.1, 0.0, 0.0, 0.0], "beyond", (True, None)),
        ([0.0, 0.0, -0.1, -0.2, -0.3, -0.3], "below", (None, True)),
        ([0.0, 0.001, 0.0, -0.001, 0.0, 0.0], "unclear", (None, None)),
        ([-0.2, -0.1, 0.1, 0.2, 0.2, 0.2], "mixed", (True, True)),
        ([0.2, -0.2, 0.2, 0.2, 0.2, 0.2], "mixed", (True, True)),
        ([0.0, 0.2, 0.2, 0.2, 0.2, 0.2], "partly", (None, True)),
    ],
)
def test_every_answer_has_levels_that_give_it(
    means: list[float], outcome: str, ends: tuple[bool | None, bool | None]
) -> None:
    break_even = break_even_of(exact(means))
    assert break_even.outcome == outcome
    assert tuple(None if bound is None else True for bound in (break_even.low, break_even.high)) == ends


def test_one_level_alone_pays_costs_or_is_unclear() -> None:
    assert [break_even_of(exact([mean])).outcome for mean in (0.3, -0.3, 0.0)] == ["everywhere", "nowhere", "unclear"]
    assert break_even_of([]).outcome == "unclear"


ratios = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=6)


@settings(max_examples=40)
@given(ratios, st.floats(0.001, 0.2))
def test_the_estimate_lies_in_its_interval_and_both_lie_in_the_sweep(means: list[float], error: float) -> None:
    break_even = break_even_of(exact(means, error))
    least, most = GRID[0], GRID[len(means) - 1]
    for bound in (break_even.low, break_even.value, break_even.high):
        assert bound is None or (least <= bound * 1.001 and bound <= most * 1.001)
    if break_even.outcome == "crosses" and break_even.value is not None:
        assert (break_even.low or least) <= break_even.value <= (break_even.high or most)


@settings(max_examples=40)
@given(ratios, st.floats(0.001, 0.2), st.floats(0.25, 8))
def test_a_sweep_at_other_levels_of_the_same_ratios_answers_alike(
    means: list[float], error: float, factor: float
) -> None:
    """Only the ratios between levels count: requests per second times a factor give a break-even times that factor."""
    here = break_even_of(exact(means, error))
    there = break_even_of(exact(means, error, [factor * x for x in GRID]))
    assert here.outcome == there.outcome
    for a, b in ((here.value, there.value), (here.low, there.low), (here.high, there.high)):
        assert (a is None) == (b is None) and (a is None or b == pytest.approx(factor * a, rel=1e-6))


@settings(max_examples=40)
@given(ratios, st.floats(0.001, 0.1))
def test_a_smaller_error_never_widens_the_interval(means: list[float], error: float) -> None:
    wide, narrow = (break_even_of(exact(means, e)) for e in (error, error / 2))
    if "crosses" == wide.outcome == narrow.outcome:
        assert (narrow.low or 0) >= (wide.low or 0) and (narrow.high or math.inf) <= (wide.high or math.inf)


def test_what_is_asked_is_judged_at_every_level_up_to_there() -> None:
    falling = exact([0.5, 0.4, 0.3, 0.1, -0.1, -0.3])
    assert [pays_up_to(falling, clients) for clients in (1, 8, 16, 32)] == ["above", "above", "below", "below"]
    assert pays_up_to(falling, 11) == "open", "near the break-even it is not told"
    assert pays_up_to(falling, 9) == "above", "between two levels the curve counts"
    dip = exact([0.5, -0.2, 0.3, 0.3])
    assert pays_up_to(dip, 8) == "below", "a level that costs is not made up for by a greater one"
    assert pays_up_to(exact([0.5, 0.001, 0.3, 0.3]), 8) == "open"

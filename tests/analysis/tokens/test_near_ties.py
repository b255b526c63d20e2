"""The law of near ties, beside scipy's distributions and a second derivation of each estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specgate.analysis.tokens.near_ties import MIMIC, SEEN, Sight, law_of, limits, shrunk, sight, standardised
from specgate.contract import Margin

SOURCE = np.random.default_rng(5)
NAMES = tuple(range(100, 120))
FLOAT32 = tuple(np.sort(SOURCE.normal(20, 2, 20))[::-1].tolist())


def margin(**values: Sequence[float]) -> Margin:
    return Margin("cell", 0, 0, 0, 5, 0.0, 0.0, **{"top_tokens": NAMES, **values})  # type: ignore[arg-type]


def off(by: float) -> tuple[float, ...]:
    """FLOAT32 with errors of `by`, and a shift that softmax makes."""
    return tuple((np.array(FLOAT32) - 17.5 + by * SOURCE.standard_normal(20)).tolist())


def test_each_rule_takes_gap_and_variance_from_its_own_passes() -> None:
    top, again, second = off(0.07), off(0.07), off(0.05)
    pair = NAMES[0], NAMES[1]
    a = sight(pair, margin(top=top, float32=FLOAT32))
    assert a.rule == "A" and a.freedom == 19 and a.gap == pytest.approx(FLOAT32[0] - FLOAT32[1])
    assert a.variance == pytest.approx(np.var(np.subtract(top, FLOAT32), ddof=1))
    b = sight(pair, margin(top=top, again=again, float32=FLOAT32))
    assert b.rule == "B" and b.gap == pytest.approx(abs(top[0] - top[1]))
    assert b.variance == pytest.approx(np.var(np.subtract(top, again), ddof=1) / 2)
    c = sight(pair, margin(second=second, float32=FLOAT32))
    assert c.rule == "C" and c.gap == a.gap
    assert c.variance == pytest.approx(MIMIC**2 * np.var(np.subtract(second, FLOAT32), ddof=1))
    assert sight((NAMES[3],), margin(second=second, float32=FLOAT32)).gap == pytest.approx(FLOAT32[0] - FLOAT32[3])


def test_a_grid_of_the_logits_adds_its_own_variance() -> None:
    top, again = (tuple((np.round(np.array(off(0.07)) * 16) / 16).tolist()) for _ in range(2))
    of = sight((NAMES[0], NAMES[1]), margin(top=top, again=again))
    assert of.variance == pytest.approx(np.var(np.subtract(top, again), ddof=1) / 2 + (1 / 16) ** 2 / 12)


def test_two_tokens_may_lie_on_a_coarser_grid_than_the_smaller_logits() -> None:
    u, below = 1 / 16, (9, 21, *SOURCE.integers(22, 160, 14))
    for units, next_two, largest in (
        (1, (12, 16), 1),
        (2, (12, 16), 2),
        (3, (12, 16), 1),
        (4, (12, 16), 4),
        (2, (12, 17), 1),
    ):
        steps = (0, units, *sorted((*next_two, *(int(n) + 12 for n in below))))
        top = tuple(-1.0 - u * n for n in steps)
        other = (*top[:5], top[5] - u, *top[6:])
        of = sight((NAMES[0], NAMES[1]), margin(top=top, again=other))
        assert of.variance == pytest.approx(np.var(np.subtract(top, other), ddof=1) / 2 + (largest * u) ** 2 / 12)


def test_what_is_not_shown_has_no_variance_and_an_unshown_token_no_gap() -> None:
    assert sight((NAMES[0], NAMES[1]), margin(top=off(0.07))).rule is None
    shown = off(0.07)
    hidden = sight((NAMES[0], 7), margin(top=shown, again=off(0.07)))
    assert hidden.outside and hidden.gap == max(shown) - min(shown)
    assert law_of([hidden], 0.005)[1][0].rule == "outside"
    law, (standing,) = law_of([Sight(math.inf)], 0.005)
    assert standing.rule == "outside" and not standing.near and law.unknown == law.places == 0
    law, (standing,) = law_of([Sight(0.1)], 0.005)
    assert standing.x is None and not standing.near and law.unknown == 1


def test_a_place_without_an_estimate_has_that_of_three_others() -> None:
    others = [Sight(0.05, v, 19, "B") for v in (0.002, 0.003, 0.004)]
    law, standing = law_of([*others, Sight(0.05)], 0.005)
    assert law.unknown == 0 and law.places == 4 and standing[-1].near
    assert law_of([*others[:2], Sight(0.05)], 0.005)[0].unknown == 1


variances = st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=9)


@given(variances, st.floats(0, 3))
def test_places_are_drawn_towards_their_median_and_judged_by_students_t(values: list[float], gap: float) -> None:
    s2, freedom = shrunk(np.array(values), np.full(len(values), 19.0))
    if len(values) >= 3:
        middle = np.median(values) / (stats.chi2.ppf(0.5, 19) / 19)
        assert s2 == pytest.approx((8 * middle + 19 * np.array(values)) / 27) and set(freedom) == {27.0}
    else:
        assert s2 == pytest.approx(values) and set(freedom) == {19.0}
    for seen in (False, True):
        x = standardised(np.full(len(values), gap), s2, freedom, seen)
        t = gap / np.sqrt(2 * s2 * (SEEN if seen else 1))
        want = stats.norm.isf(np.maximum(stats.t.sf(t, freedom), 1e-300))
        assert x == pytest.approx(np.maximum(want, 0), abs=1e-7)


@given(st.integers(1, 200), st.sampled_from([0.005, 0.0005]))
def test_each_of_the_two_tests_has_half_the_error(places: int, error: float) -> None:
    furthest, mean = limits(places, error)
    assert places * 2 * stats.norm.sf(furthest) == pytest.approx(error / 2)
    assert stats.chi2.sf(mean * places, places) == pytest.approx(error / 2)


def test_a_token_that_is_not_among_few_close_ones_is_neither_wrong_nor_a_near_tie() -> None:
    close = Margin("cell", 0, 0, 0, 5, 0.0, 0.0, top=(-1.0, -1.05), top_tokens=(1, 2), again=(-1.02, -1.01))
    one = sight((1, 3), close)
    law, (standing,) = law_of([one], 0.005)
    assert one.outside and one.gap == pytest.approx(0.05)
    assert standing.rule is None and not standing.near and law.unknown == 1 and law.places == 0
    known = [Sight(0.05, 0.003, 19, "B")] * 3
    law, standings = law_of([*known, one], 0.005)
    assert standings[-1].rule is None and law.unknown == 1 and law.places == 3
    assert law_of([*known, replace(one, gap=1.0)], 0.005)[1][-1].rule == "outside"


def test_rule_c_says_how_the_second_engine_rounds_and_nothing_of_the_first() -> None:
    law, (standing,) = law_of([Sight(0.05, (MIMIC * 0.08) ** 2, 19, "C")], 0.005)
    assert law.sigma == pytest.approx(0.08) and standing.sigma == pytest.approx(MIMIC * 0.08)


def test_few_values_tell_no_variance_unless_three_places_do() -> None:
    few = [Sight(0.05, 0.003, 4, "A")] * 3
    assert law_of(few[:2], 0.005)[0].unknown == 2 and law_of(few, 0.005)[0].unknown == 0

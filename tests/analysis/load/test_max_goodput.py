"""The greatest load within latency limits: of a server whose latencies are known, with as few levels as it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.load.figures import most_in_words
from specgate.analysis.load.level_search import needless_levels, needless_points, search_order
from specgate.analysis.load.max_goodput import bounds, first_rise, greatest_loads
from specgate.contract import LatencyLimits
from specgate.contract.load import LevelUse
from specgate.planning.plan import build_plan
from tests.support.factories import run_of
from tests.support.loaded import load_scenario, loaded_run, served_blocks

LIMITS = LatencyLimits(tpot_ms=2.0)
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16)


def test_each_role_has_the_level_at_which_its_requests_reach_the_limit() -> None:
    """A baseline step of n requests takes 1 + 0.1 n ms by script, so 2 ms are reached at 10 clients."""
    run = loaded_run(load_scenario((1, 4, 8, 16), goodput=LIMITS))
    baseline, spec = greatest_loads(run.scenarios, run.cells)
    assert (baseline.k, spec.k) == (0, 3) and baseline.outcome == spec.outcome == "crosses"
    assert baseline.value == pytest.approx(10, rel=0.05) and spec.value is not None and spec.value < 16
    text = most_in_words([baseline, spec], LIMITS)
    assert text.startswith(
        f"within TPOT ≤ 2 ms for 90 % of requests: baseline up to {baseline.value:.3g} clients (95 %"
    )


def test_limits_that_hold_everywhere_or_nowhere_have_no_crossing() -> None:
    for limit, outcome in ((1e6, "everywhere"), (0.01, "nowhere")):
        run = loaded_run(load_scenario((1, 4), goodput=LatencyLimits(tpot_ms=limit)))
        assert {m.outcome for m in greatest_loads(run.scenarios, run.cells)} == {outcome}
        assert all(m.value is None for m in greatest_loads(run.scenarios, run.cells))


def test_nothing_is_known_of_a_role_without_a_measured_level() -> None:
    """As where the server ends before the first block: the run comes to its end, and says why."""
    run = run_of(build_plan([load_scenario((1, 4), goodput=LIMITS)], "fake"), [], kind="load")
    most = greatest_loads(run.scenarios, run.cells)
    assert [(m.outcome, m.value, m.low, m.high) for m in most] == [("unknown", None, None, None)] * 2
    assert most_in_words(most, LIMITS).endswith("baseline unknown, spec-3 unknown")


def test_a_level_with_too_few_requests_leans_on_those_above_and_below_it() -> None:
    def at(level: float, low: float | None, high: float | None) -> LevelUse:
        return LevelUse(level, f"c{level}", 8, 0.5, low, high, None)

    upper, lower = bounds([at(1, None, None), at(2, 0.4, 0.6), at(4, None, None)])
    assert upper[:2] == [0.6, 0.6] and upper[2] > 1e3
    assert lower[1:] == [0.4, 0.4] and lower[0] < 1e-3


def test_the_crossing_is_interpolated_in_the_logarithm_of_both() -> None:
    """From 0.5 at 4 to 2 at 16: halfway in logarithms, at 8."""
    assert first_rise([(1, 0.1), (4, 0.5), (16, 2.0)]) == pytest.approx(8)
    assert first_rise([(1, 1.1), (4, 2.0)]) == 0 and first_rise([(1, 0.9)]) == float("inf")


@given(st.floats(0.3, 40), st.floats(0.3, 40))
def test_a_search_measures_the_neighbours_of_both_limits_and_says_the_same_of_every_level(a: float, b: float) -> None:
    """Two roles whose use is level / limit: what was measured brackets each limit by neighbours of the whole grid."""
    uses: dict[float, list[float]] = {}
    for level in search_order(LEVELS):
        if level not in needless_levels(LEVELS, uses):
            uses[level] = [level / a, level / b]
    assert set(uses) | needless_levels(LEVELS, uses) == set(LEVELS), "nothing that is needed is left when it ends"
    for role, limit in enumerate((a, b)):
        last_within = max((level for level in LEVELS if level <= limit), default=None)
        broke = min((level for level in LEVELS if level > limit), default=None)
        measured = {level: use[role] for level, use in uses.items()}
        assert max((x for x, use in measured.items() if use <= 1), default=None) == last_within
        assert min((x for x, use in measured.items() if use > 1), default=None) == broke
    if max(a, b) < 3:
        assert len(uses) <= 5, "levels far beyond both limits are not measured"


def test_points_that_were_measured_are_never_left_out() -> None:
    scenario = load_scenario(LEVELS, rounds=2, goodput=LIMITS)
    assert scenario.load is not None
    plan = build_plan([replace(scenario, load=replace(scenario.load, search="goodput"))], "fake")
    assert [p.batch for p in plan.points] == [1, 3, 6, 12, 2, 4, 8, 16]
    few = [b for b in served_blocks(plan) if b.point.batch in (1, 3, 6, 12)]
    assert {p.batch for p in needless_points(plan, few)} == {2, 4, 16}, "between 6 and 12 lies the baseline's limit"
    assert not needless_points(plan, served_blocks(plan))


def test_a_search_for_the_break_even_ends_at_the_first_level_at_which_speculation_costs() -> None:
    """By script it pays up to about nine clients."""
    scenario = load_scenario((1, 8, 12, 16, 32), rounds=2)
    assert scenario.load is not None
    plan = build_plan([replace(scenario, load=replace(scenario.load, search="break-even"))], "fake")
    up_to_16 = [b for b in served_blocks(plan) if b.point.batch <= 16]
    assert {p.batch for p in needless_points(plan, up_to_16)} == {32}
    assert not needless_points(plan, [b for b in up_to_16 if b.point.batch <= 8])

"""The rule that judges: held to the vectorised one of the simulation, to its levels, and to what looks promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.simulations.error_rates import bound
from bench.simulations.gate_simulation import Between, Flags, schedules, sequential, simulate, until_decided
from bench.simulations.noises import DRIFT, NOISES, Turns
from specgate.analysis.intervals.autocorrelation import PRIOR_SD, fit
from specgate.analysis.intervals.between_runs import ASSUMED, LEAST, either, half_width, least_counts
from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS, decide, false_fail, interval, spent, tail
from specgate.analysis.stats import Pairs, planned_interim_looks, t_quantile
from specgate.contract import BetweenRuns, Schedule

SHIPPED = schedules()
NOTHING = BetweenRuns(0.0, None)


def test_looks_spend_the_error_and_always_leave_some() -> None:
    shares = [spent(0.005, look) for look in range(1, 200)]
    assert shares[:3] == pytest.approx([0.0025, 0.005 / 6, 0.005 / 12])
    assert sum(shares) == pytest.approx(0.005 * (1 - 1 / 200))


def test_required_decisions_share_the_error_of_a_fail_and_advice_does_not() -> None:
    assert false_fail(True, 7) * 7 == pytest.approx(FALSE_FAIL)
    assert false_fail(False, 7) == false_fail(True, 0) == FALSE_FAIL


@given(st.integers(1, 12), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_no_look_moves_when_a_run_is_continued(sets: int, more: list[int]) -> None:
    ends = np.cumsum([2 * m for m in more]).tolist()
    template = next(iter(SHIPPED.values()))

    def looks(count: int) -> tuple[int, ...]:
        schedule = Schedule(ends[count - 1], 1, tuple(ends[: count - 1]))
        workload = replace(template.workload, prompt_sets=sets)
        return planned_interim_looks(replace(template, workload=workload, schedule=schedule))

    for count in range(1, len(ends)):
        assert looks(count + 1)[: len(looks(count))] == looks(count)
    assert looks(len(ends))[-1] == sets * ends[-1]
    assert list(looks(len(ends))) == sorted(set(looks(len(ends))))


# ── between runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_differs_between_runs_widens_each_side_in_quadrature() -> None:
    pairs = Pairs([0.1, 0.11, 0.09, 0.1, 0.105, 0.095], [1, -1, -1, 1, 1, -1], [0] * 6, range(6))
    alone, over = interval(pairs, NOTHING, 0.01, 0.001), interval(pairs, BetweenRuns(0.01, 4), 0.01, 0.001)
    assert alone is not None and over is not None
    for error, own, all_ in ((0.01, alone.mean - alone.low, over.mean - over.low),
                             (0.001, alone.high - alone.mean, over.high - over.mean)):  # fmt: skip
        assert all_ == pytest.approx(math.hypot(own, t_quantile(1 - error / 2, 4) * 0.01))


# ── the narrower of two ──────────────────────────────────────────────────────────────────────────────────────────────

SEEN = (2.294, 2.436, 2.437, 2.372)
"""Ratios of four pairs of a server, the first of them cold, on two prompt sets."""


def test_four_pairs_of_a_server_decide_a_floor_that_lies_far_below() -> None:
    pairs = Pairs([math.log(x) for x in SEEN], [1, 1, -1, -1], [0, 1, 1, 0], range(4))
    decision = decide(pairs, 4, (4, 8), 0.0, ASSUMED)
    assert decision.side == "above" and decision.interval is not None
    assert (math.exp(decision.interval.low), math.exp(decision.interval.high)) == pytest.approx(
        (1.703, 3.421), abs=0.001
    )


@given(st.lists(st.floats(-1.0, 1.0), min_size=8, max_size=8), st.floats(1e-7, 0.02), st.sampled_from([0.0, 0.03, 0.2]))
def test_a_side_is_no_wider_than_either_interval_at_half_the_error(d: list[float], error: float, noisy: float) -> None:
    orders, sets, between = (1, -1, -1, 1) * 2, (0,) * 8, BetweenRuns(0.002, 4, pair_sd=noisy)
    fitted = fit(d, orders, sets, range(8), max(PRIOR_SD, noisy))
    span = interval(Pairs(d, orders, sets, range(8)), between, error, error)
    assert fitted is not None and span is not None
    half = error / 2
    far = half if half > 3e-4 else half * half / 3e-4
    processes = stats.t.isf(half, 4) * 0.002
    own, leaning = (
        stats.t.isf(far, fitted.freedom) * fitted.error,
        stats.t.isf(far, fitted.freedom + 4) * fitted.prior_error,
    )
    assert span.high - span.mean == pytest.approx(min(math.hypot(own, processes), math.hypot(leaning, processes)))
    assert span.high - span.mean == pytest.approx(span.mean - span.low)


def test_a_quiet_noise_profile_does_not_narrow_what_is_expected_of_a_pair_and_a_noisy_one_widens_it() -> None:
    pairs = Pairs([0.1, 0.3, -0.1, 0.1], [1, -1, -1, 1], [0] * 4, range(4))
    spans = [interval(pairs, BetweenRuns(0.001, 4, pair_sd=sd), 0.001, 0.001) for sd in (0.0, 0.001, 0.05, 0.2)]
    highs = [span.high for span in spans if span is not None]
    assert highs[0] == highs[1] == highs[2] < highs[3]


def test_small_errors_are_read_further_out_in_the_tail() -> None:
    errors = np.geomspace(1e-8, 0.01, 50)
    read = [tail(float(error)) for error in errors]
    assert read == sorted(read) and all(far <= error for far, error in zip(read, errors, strict=True))
    assert tail(0.00125) == 0.00125 and tail(3e-5) == pytest.approx(3e-6)


def test_few_processes_count_for_less_than_an_assumption_and_machines_come_on_top() -> None:
    assert half_width(BetweenRuns(0.0045, 2), 0.00175) > 3 * half_width(ASSUMED, 0.00175)
    both = BetweenRuns(0.003, 4, 0.004, 3)
    parts = (half_width(BetweenRuns(0.003, 4), 0.01), half_width(BetweenRuns(0.004, 3), 0.01))
    assert half_width(both, 0.01) == pytest.approx(math.hypot(*parts))


def test_two_roles_have_the_variance_of_both_and_the_fewer_degrees_of_freedom() -> None:
    between = either(BetweenRuns(0.003, 7), BetweenRuns(0.004, 4))
    assert between.process_sd == pytest.approx(0.005)
    assert between.process_freedom == 4
    assert either(ASSUMED, BetweenRuns(0.0, 4)).process_freedom == 4
    assert either(ASSUMED, ASSUMED).process_freedom is None


def test_processes_that_hardly_differ_count_for_the_least_that_is_allowed_for() -> None:
    calm, noisy = BetweenRuns(0.0, 4, least_process_sd=0.0013), BetweenRuns(0.003, 4, least_process_sd=0.0013)
    assert half_width(calm, 0.01) == pytest.approx(stats.norm.ppf(0.99) * 0.0013)
    assert half_width(noisy, 0.01) == half_width(BetweenRuns(0.003, 4), 0.01)
    assert least_counts(calm, 0.01) and not least_counts(noisy, 0.01) and not least_counts(ASSUMED, 0.01)
    assert either(calm, noisy).least_process_sd == pytest.approx(0.0013 * math.sqrt(2))


def test_a_drift_after_a_noise_profile_that_saw_no_spread_does_not_pass_a_continued_run() -> None:
    """The first look sees the first quarter of a drift of 1 %, which lies 0.4 % above the mean of all."""
    scenario, runs = SHIPPED["8 × 4, continued to 8"], 2000

    def passed(least: float) -> Flags:
        blind = Between(np.zeros(1), 4, least)
        return simulate(scenario, DRIFT, runs, 0.0004, np.random.default_rng(4), blind=blind).above

    assert bound(passed(0.0))[1] > 0.1
    assert bound(passed(LEAST))[2] < FALSE_PASS


@pytest.mark.parametrize("name", ["8 × 4", "4 × 8"])
@pytest.mark.parametrize("percent", [-1, 1])
def test_the_least_that_is_allowed_for_leaves_a_calibrated_gpu_its_one_percent(name: str, percent: int) -> None:
    effect, noise = math.log1p(percent / 100), np.random.default_rng(5)
    kind = "process sd 0.02 %"
    rates = simulate(SHIPPED[name], kind, 1000, 0.0004, noise, effect=effect, profile=True)
    assert bound(rates.above if percent > 0 else rates.below)[1] > 0.95


@pytest.mark.parametrize("wrong", [
    {"process_sd": -0.1}, {"process_sd": math.nan}, {"least_process_sd": -0.1}, {"machine_sd": math.inf},
    {"process_freedom": 0}, {"machine_freedom": 0},
])  # fmt: skip
def test_a_variance_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        BetweenRuns(**{"process_sd": 0.001, "process_freedom": 4, **wrong})  # type: ignore[arg-type]


def test_the_sum_of_two_unknown_variances_keeps_its_level() -> None:
    """A small sample's mean and few processes: the truth lies beyond each side no more often than was asked for."""
    noise, runs, error = np.random.default_rng(8), 40_000, 0.01
    for own_sd, process_sd in ((1.0, 0.2), (1.0, 1.0), (0.2, 1.0)):
        d = noise.normal(0, own_sd, (runs, 5)) + noise.normal(0, process_sd, (runs, 1))
        spread = noise.normal(0, process_sd, (runs, 4)).std(axis=1, ddof=1)
        own = t_quantile(1 - error, 4) * d.std(axis=1, ddof=1) / math.sqrt(5)
        reach = np.hypot(own, t_quantile(1 - error, 3) * spread)
        assert bound(d.mean(axis=1) > reach)[1] <= error


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["4 × 8", "8 × 2", "8 × 4, continued to 8", "4 × 2"])
@pytest.mark.parametrize("between", [ASSUMED, BetweenRuns(0.002, 4), BetweenRuns(0.0, 4, least_process_sd=0.002)])
def test_the_simulated_rule_is_the_one_that_judges(name: str, between: BetweenRuns) -> None:
    scenario, noise = SHIPPED[name], np.random.default_rng(3)
    turns, looks = Turns.of(scenario), planned_interim_looks(scenario)
    d = np.concatenate([
        shift + kind(12, turns, 0.004, noise) for kind in NOISES.values() for shift in (0.0, 0.02, -0.05)
    ])  # fmt: skip
    freedom = between.process_freedom or math.inf
    spread = Between(np.full(len(d), between.process_sd), freedom, between.least_process_sd)
    fast = sequential(d, turns, looks, spread, -0.01)
    pairs = [Pairs(row, turns.orders, turns.prompt_sets, range(len(row))) for row in d.tolist()]
    slow = [decide(p, len(turns.orders), looks, -0.01, between) for p in pairs]
    assert [x.side == "above" for x in slow] == fast.above.tolist()
    assert [x.side == "below" for x in slow] == fast.below.tolist()
    assert [x.pairs for x in slow] == fast.pairs.tolist()
    assert name == "4 × 2" or {x.side for x in slow} == {"above", "below", "open"}


def test_the_first_look_that_decides_settles_it_whatever_comes_after() -> None:
    orders = [1, -1, -1, 1] * 4
    d = [0.2, 0.201, 0.199, 0.2] * 2
    first = decide(Pairs(d, orders[:8], [0] * 8, range(8)), 8, (8, 16), 0.0, ASSUMED)
    assert (first.side, first.look, first.pairs, first.alpha) == ("above", 1, 8, FALSE_PASS / 2)
    assert decide(Pairs(d + [-9.0] * 8, orders, [0] * 16, range(16)), 16, (8, 16), 0.0, ASSUMED) == first


def test_before_the_first_look_nothing_is_decided() -> None:
    decision = decide(Pairs([0.5] * 4, [1, -1, -1, 1], [0] * 4, range(4)), 4, (8, 16), 0.0, ASSUMED)
    assert (decision.side, decision.look, decision.interval) == ("open", 0, None)


@pytest.mark.parametrize("name", ["4 × 8", "8 × 4"])
@pytest.mark.parametrize("kind", ["AR(1) 0.9", "AR(1) 0.9, half white", "process sd 0.6 %"])
def test_on_the_floor_itself_each_wrong_verdict_stays_within_its_error(name: str, kind: str) -> None:
    """At a block noise at which what is assumed between processes hides nothing of the rest."""
    sd = 0.05 if kind.startswith("AR") else 0.001
    rates = simulate(SHIPPED[name], kind, 10_000, sd, np.random.default_rng(4))
    assert bound(rates.above)[1] <= FALSE_PASS
    assert bound(rates.below)[1] <= FALSE_FAIL


@pytest.mark.parametrize(("name", "kind"), [
    ("2 sets until decided", "AR(1) 0.9, half white"), ("8 sets until decided", "process sd 0.6 %"),
])  # fmt: skip
def test_looks_until_a_run_is_decided_keep_the_errors_too(name: str, kind: str) -> None:
    sd = 0.05 if kind.startswith("AR") else 0.001
    rates = simulate(until_decided()[name], kind, 1500, sd, np.random.default_rng(4))
    assert bound(rates.above)[1] <= FALSE_PASS and bound(rates.below)[1] <= FALSE_FAIL


def test_with_a_noise_profile_one_percent_is_told_and_without_one_three() -> None:
    noise = np.random.default_rng(6)
    at = {percent: math.log1p(percent / 100) for percent in (1, -1, -3)}
    known = simulate(SHIPPED["8 × 4"], "process sd 0.02 %", 2000, 0.0004, noise, effect=at[1], profile=True)
    assert known.above.mean() > 0.99
    assumed = simulate(SHIPPED["8 × 4"], "process sd 0.02 %", 2000, 0.0004, noise, effect=at[-1])
    assert not assumed.below.any() and not assumed.above.any()
    assert simulate(SHIPPED["8 × 4"], "process sd 0.02 %", 2000, 0.0004, noise, effect=at[-3]).below.mean() > 0.99

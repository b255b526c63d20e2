"""Rules on percentiles and on goodput: decided by an interval, or not at all."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from specgate.analysis.reduce import Checked, measure
from specgate.analysis.requests.percentiles import ERROR, quantiles
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import (
    Block,
    CellResult,
    LatencyLimits,
    NearTies,
    Plan,
    Rule,
    Run,
    State,
    TimeEnd,
    Value,
    Verdict,
)
from specgate.gates.goodput import GATE as GOODPUT
from specgate.gates.tail import GATE as TAIL
from tests.support.factories import blocks_of, plan_of, run_of, scenario, texts_of


def scattered_blocks(plan: Plan, slow: int = 0) -> list[Block]:
    """Blocks of 50 steps of about 10 ms (baseline) and 14 ms (spec), of which `slow` take ten times as long."""
    noise = random.Random(3)

    def scattered(b: Block) -> Block:
        mean, stalls = b.step_ns[0], set(noise.sample(range(50), slow if b.role.speculative else 0))
        steps = tuple(round(mean * (10 if i in stalls else 1 + noise.gauss(0, 0.02))) for i in range(50))
        return replace(b, step_ns=steps, elapsed_ns=sum(steps), phase_ns={})

    return blocks_of(plan, steps=50, jitter=0, change=scattered)


def full_run(limits: LatencyLimits | None = None, *, prompt_sets: int = 4, rounds: int = 2, slow: int = 0) -> Run:
    small_scenario = scenario(kind="full", prompt_sets=prompt_sets, rounds=rounds, steps=50)
    plan = plan_of(replace(small_scenario, goodput=limits))
    return run_of(plan, scattered_blocks(plan, slow), kind="full")


def test_an_interval_has_its_share_of_the_error_where_the_end_of_a_points_time_is_one_look_more() -> None:
    plan = plan_of(scenario(kind="full", prompt_sets=16, rounds=8, steps=50))
    blocks, (point,) = scattered_blocks(plan), plan.points
    ends = {point.key: (TimeEnd(point.key, 50, 60.0, 60.0),)}
    checked = Checked(texts_of(blocks))
    cell = measure(plan, blocks, (), NearTies(1e-3), checked, ends=ends)[0][1]
    steps = [[ns / 1e6 for ns in b.step_ns] for b in blocks if b.role.speculative and not b.warmup]
    looks = planned_interim_looks(plan.scenarios[point.scenario], ends[point.key])
    (expected,) = quantiles(steps, [0.9], ERROR / len(looks))
    tail_value = cell.values["p90_icl_ms"]
    assert (tail_value.ci_low, tail_value.ci_high) == pytest.approx((expected.low, expected.high))
    assert len(looks) == 1 + len(planned_interim_looks(plan.scenarios[point.scenario]))
    run = replace(run_of(plan, blocks, kind="full"), time_ends=ends)
    assert tail(run, "p90_icl_ms", 20.0).evidence["confidence"] == pytest.approx(1 - 2 * ERROR / len(looks))


def with_values(run: Run, *values: Value) -> Run:
    def changed(result: CellResult) -> CellResult:
        return replace(result, values={**result.values, **{v.metric: v for v in values}})

    return replace(run, cells=tuple(map(changed, run.cells)))


def tail(run: Run, metric: str, max_ms: float) -> Verdict:
    rule = Rule("tail", "tail", True, role="spec-3", params={"metric": metric, "max_ms": max_ms})
    (verdict,) = TAIL.judge(rule, run)
    return verdict


def goodput(run: Run, min_share: float) -> Verdict:
    (verdict,) = GOODPUT.judge(Rule("g", "goodput", True, role="spec-3", params={"min_share": min_share}), run)
    return verdict


def test_enough_gaps_decide_a_p99_on_both_sides_of_the_limit() -> None:
    quiet, stalling = (full_run(prompt_sets=16, rounds=8, slow=slow) for slow in (0, 2))
    passed, failed = tail(quiet, "p99_icl_ms", 20.0), tail(stalling, "p99_icl_ms", 20.0)
    assert passed.state is State.PASS and passed.evidence["samples"] == 128 * 50
    assert (failed.state, failed.reason_code) == (State.FAIL, "above_max")
    assert failed.evidence["max"] == 20.0 and isinstance(failed.evidence["p99_icl_ms"], float)


def test_a_server_that_refuses_requests_has_no_tail_and_its_goodput_counts_them() -> None:
    run = with_values(full_run(prompt_sets=16, rounds=8), Value("refused_requests", 300.0, "count", 428))
    refused = tail(run, "p99_icl_ms", 20.0)
    assert (refused.state, refused.reason_code) == (State.INVALID, "requests_refused")
    assert refused.message.startswith("300 of 428 requests were refused in demo-64/")


def test_eight_requests_decide_no_p99() -> None:
    result = tail(full_run(), "p99_tpot_ms", 1000.0)
    assert (result.state, result.reason_code) == (State.INCONCLUSIVE, "few_samples")
    assert "p99_tpot_ms" in result.message and "8 samples" in result.message and result.next_step


def test_few_samples_may_still_prove_that_a_limit_is_broken() -> None:
    """Every request is far too slow: the upper bound is not known, the lower one is enough."""
    assert tail(full_run(prompt_sets=8, rounds=4), "p90_tpot_ms", 0.001).state is State.FAIL


def test_a_limit_inside_the_interval_is_not_decided() -> None:
    run = with_values(full_run(), Value("p90_itl_ms", 10.0, "p90", 900, 9.0, 11.0))
    for limit, state in ((8.9, State.FAIL), (9.0, State.INCONCLUSIVE), (10.9, State.INCONCLUSIVE), (11.0, State.PASS)):
        assert tail(run, "p90_itl_ms", limit).state is state


def test_more_looks_make_the_interval_surer() -> None:
    """Two looks are planned for 8 prompt sets of 4 rounds, one for 4 sets of 2: each spends its share of the error."""
    one, several = (full_run(prompt_sets=n, rounds=r) for n, r in ((2, 2), (8, 4)))
    levels = [tail(run, "p50_itl_ms", 1e6).evidence["confidence"] for run in (one, several)]
    assert levels[0] == pytest.approx(0.993) and isinstance(levels[1], float) and levels[1] > 0.993


def test_a_metric_that_is_no_percentile_is_refused_with_those_there_are() -> None:
    rule = Rule("tail", "tail", True, params={"metric": "mean_itl_ms", "max_ms": 1.0})
    ((key, why),) = TAIL.problems(rule)
    assert key == "metric" and "p99_itl_ms" in why


def test_what_a_run_cannot_have_is_skipped_with_the_reason() -> None:
    micro = plan_of(scenario())
    assert "no whole requests" in tail(run_of(micro, blocks_of(micro)), "p99_ttft_ms", 1.0).message


def test_withheld_times_are_judged_by_nobody() -> None:
    run = with_values(full_run(), Value("p99_itl_ms", None, "p99", 9, reason_code="token_mismatch"))
    assert (tail(run, "p99_itl_ms", 1.0).state, tail(run, "p99_itl_ms", 1.0).reason_code) == (
        State.INVALID,
        "token_mismatch",
    )


def test_goodput_is_decided_by_the_interval_of_the_share() -> None:
    run = full_run(LatencyLimits(ttft_ms=500.0, tpot_ms=20.0))
    run = with_values(
        run, Value("goodput_share", 0.9, "mean", 400, 0.85, 0.94), Value("goodput_req_s", 3.0, "mean", 400)
    )
    states = {share: goodput(run, share).state for share in (0.85, 0.9, 0.95)}
    assert states == {0.85: State.PASS, 0.9: State.INCONCLUSIVE, 0.95: State.FAIL}
    assert "TTFT ≤ 500 ms, TPOT ≤ 20 ms" in goodput(run, 0.9).message
    assert goodput(run, 0.9).evidence["goodput_req_s"] == 3.0


def test_goodput_without_limits_or_without_a_server_is_skipped_with_the_reason() -> None:
    assert goodput(full_run(), 0.9).reason_code == "no_limits"
    assert goodput(full_run(LatencyLimits(ttft_ms=500.0)), 0.9).reason_code == "not_served"
    ((key, why),) = GOODPUT.problems(Rule("g", "goodput", True, params={"min_share": 1.5}))
    assert (key, why) == ("min_share", "no share: it lies between 0 and 1")

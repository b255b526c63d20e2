"""Gate `load`: speculation pays up to a level, every level was measured, and the server took every request."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specgate import plugins
from specgate.analysis.load.sweeps import late_clients
from specgate.analysis.verdict import not_judged
from specgate.contract import Comparison, Divergence, LatencyLimits, Rule, Run, State, Value, Verdict
from specgate.gates.load import GATE
from specgate.gates.speed import GATE as SPEED
from specgate.planning.gates import kinds_of, verdicts_of
from tests.support.factories import policy_of
from tests.support.loaded import SCRIPT, load_scenario, loaded_run


@pytest.fixture(scope="module")
def run() -> Run:
    """Speculation pays up to about nine clients."""
    return loaded_run()


def rule(**params: float) -> Rule:
    return Rule("pays", "load", True, role="spec-*", params=params)


def judged(run: Run, **params: float) -> Verdict:
    (verdict,) = GATE.judge(rule(**params), run)
    return verdict


@pytest.mark.parametrize(
    ("number", "state", "code", "cell"),
    [
        (1, State.PASS, "pays_up_to_min", "b1"),
        (8, State.PASS, "pays_up_to_min", "b8"),
        (6, State.PASS, "pays_up_to_min", "b4"),
        (16, State.FAIL, "costs_before_min", "b16"),
        (0.5, State.INCONCLUSIVE, "outside_the_sweep", "b1"),
        (32, State.INCONCLUSIVE, "outside_the_sweep", "b16"),
    ],
)
def test_speculation_must_pay_up_to_the_level_that_is_asked_for(
    run: Run, number: float, state: State, code: str, cell: str
) -> None:
    outcome = judged(run, min_break_even=number)
    assert (outcome.state, outcome.reason_code) == (state, code), outcome.message
    assert outcome.cell == f"sweep/fake/c16/{cell}/spec-3"
    assert "speculation pays up to" in outcome.message and outcome.evidence["outcome"] == "crosses"
    assert outcome.evidence["break_even"] == run.break_even[0].value


def test_near_the_break_even_it_is_inconclusive(run: Run) -> None:
    value = run.break_even[0].value
    assert value is not None and 8 < value < 16
    outcome = judged(run, min_break_even=value)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "one_not_excluded")


def test_too_few_pairs_for_an_interval_decide_nothing() -> None:
    outcome = judged(loaded_run(load_scenario((1, 2), prompt_sets=2, rounds=1)), min_break_even=1)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "few_pairs")
    assert outcome.next_step == "a new run with more --measurement-runs"


def test_a_load_that_is_measured_until_decided_goes_on_with_more_time() -> None:
    few = loaded_run(load_scenario((1, 2), prompt_sets=2, rounds=1, goodput=LatencyLimits(e2e_ms=1e6)))
    scenarios = {name: replace(s, schedule=replace(s.schedule, until="decided")) for name, s in few.scenarios.items()}
    asking = (
        rule(min_break_even=1),
        Rule("share", "goodput", True, role="spec-*", params={"min_share": 0.999}),
        Rule("tail", "tail", True, role="spec-*", params={"metric": "p99_tpot_ms", "max_ms": 1e6}),
    )
    for one in asking:
        verdict = next(iter(plugins.gate(one.gate).judge(one, replace(few, scenarios=scenarios))))
        assert str(verdict.next_step).startswith("a new run with more --budget"), one.gate


def test_a_level_that_is_missing_or_withheld_makes_the_sweep_invalid(run: Run) -> None:
    partial = replace(
        run, cells=(replace(run.cells[0], status="partial", reason="2 blocks are missing"), *run.cells[1:])
    )
    assert judged(partial, min_break_even=4).reason_code == "not_measured"

    def wrong(comparison: Comparison) -> Comparison:
        parted = Divergence(0, 0, 0, 3, 1, 2, None, near_tie=False)
        tokens = replace(comparison.tokens, divergences=(parted,))
        return replace(
            comparison, tokens=tokens, speedup=replace(comparison.speedup, value=None, reason_code="token_mismatch")
        )

    withheld = replace(run, comparisons=(wrong(run.comparisons[0]), *run.comparisons[1:]))
    assert (outcome := judged(withheld, min_break_even=4)).reason_code == "token_mismatch"
    assert outcome.state is State.INVALID


def test_refused_requests_make_the_sweep_invalid_beyond_the_share_that_is_allowed() -> None:
    script = replace(SCRIPT, refuse_beyond=6)
    refusing = loaded_run(load_scenario((1, 4, 8), rounds=2), script)
    outcome = judged(refusing, min_break_even=1)
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "requests_refused")
    assert "c16/b8/" in outcome.message and "at most 0 %" in outcome.message
    allowed = judged(refusing, min_break_even=1, max_refused=1.0)
    assert allowed.reason_code != "requests_refused"
    ((key, why),) = GATE.problems(rule(min_break_even=1, max_refused=1.5))
    assert (key, why) == ("max_refused", "no share: it lies between 0 and 1")


def test_rules_on_texts_name_the_refused_requests_of_which_there_are_none() -> None:
    refusing = loaded_run(load_scenario((8,), rounds=2), replace(SCRIPT, refuse_beyond=6))
    for asking in (
        Rule("no-loops", "degeneracy", True, params={"max_repeated_share": 0.5}),
        Rule("tokens", "tokens", True, params={"near_tie_margin": 0.0}),
    ):
        for verdict in plugins.gate(asking.gate).judge(asking, refusing):
            assert (verdict.state, verdict.reason_code) == (State.INVALID, "requests_refused"), asking.gate
            assert re.match(r"\d+ of 128 requests were refused in sweep/fake/c16/b8/.*: only texts", verdict.message)
            assert verdict.next_step == "a smaller load, or a server that queues more requests"


def test_an_open_loop_is_judged_by_its_rates() -> None:
    open_loop = loaded_run(load_scenario((8,), rates=(20.0, 100.0), requests=6))
    outcome = judged(open_loop, min_break_even=20)
    assert outcome.state is State.PASS and "20 requests/s" in outcome.message
    assert {c.speedup.metric for c in open_loop.comparisons} == {"latency_speedup_ratio"}


def test_an_open_loop_whose_client_fell_behind_passes_no_rule_on_its_times() -> None:
    """A request takes 2.3 ms to 26 ms; one in twenty of that may pass before it is sent."""
    sweep = load_scenario((8,), rates=(20.0, 100.0), requests=6, rounds=12, goodput=LatencyLimits(e2e_ms=1e6))
    on_time, late = (loaded_run(sweep, replace(SCRIPT, send_lag_ns=lag)) for lag in (100_000, 5_000_000))
    rules = (
        Rule("pays", "load", True, role="spec-*", params={"min_break_even": 20}),
        Rule("speed", "speed", True, role="spec-*", params={"min": 0.1}),
        Rule("tail", "tail", True, role="spec-*", params={"metric": "p50_e2e_ms", "max_ms": 1e6}),
        Rule("within", "goodput", True, role="spec-*", params={"min_share": 0.1}),
    )
    for asking in rules:
        gate = plugins.gate(asking.gate)
        assert {v.state for v in gate.judge(asking, on_time)} == {State.PASS}, asking.gate
        for verdict in gate.judge(asking, late):
            assert (verdict.state, verdict.reason_code) == (State.INVALID, "client_fell_behind"), asking.gate
            assert "sent more than 5.000 ms after it was due" in verdict.message and verdict.next_step
    assert not late_clients(on_time.cells) and len(late_clients(late.cells)) == 4


def test_the_latencies_of_an_open_loop_decide_nothing_where_other_requests_were_refused() -> None:
    run = loaded_run(load_scenario((8,), rates=(20.0,), requests=6))
    refused = {"refused_requests": Value("refused_requests", 3.0, "count", 48)}
    cells = tuple(r if r.cell.role.speculative else replace(r, values={**r.values, **refused}) for r in run.cells)
    (verdict,) = SPEED.judge(Rule("r", "speed", True, role="spec-*", params={"min": 0.1}), replace(run, cells=cells))
    assert (verdict.state, verdict.reason_code) == (State.INVALID, "requests_refused")
    assert verdict.message.startswith("3 of 48 requests were refused in sweep/fake/c16/")
    assert verdict.cell.endswith("spec-3")


def test_a_verdict_on_the_sweep_judges_the_speed_of_every_level(run: Run) -> None:
    policy = replace(policy_of(rule(min_break_even=4)), not_judged=())
    (verdict,), kinds = verdicts_of(policy.rules[0], run), kinds_of(policy)
    assert verdict.floor is not None and verdict.floor.text == "pays up to 4"
    gaps = {gap.kind for gap in not_judged(replace(run, verdicts=(verdict,)), policy, kinds) or ()}
    assert "speed" not in gaps and {"validity", "tokens"} <= gaps
    assert "speed" in {gap.kind for gap in not_judged(run, policy, kinds) or ()}, "without the verdict it is not judged"


def test_a_run_that_is_no_load_is_skipped(run: Run) -> None:
    other = replace(run, scenarios={k: replace(s, load=None, kind="full") for k, s in run.scenarios.items()})
    assert judged(other, min_break_even=4).state is State.SKIPPED

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Held, Invariant, Rule, Run, State
from specgate.gates.invariants import GATE
from specgate.planning.scenario import override
from tests.support.factories import blocks_of, plan_of, run_of, scenario

RULE = Rule("perf-mode", "invariants", True)


def run_with(*rows: Held) -> Run:
    """A run of one baseline and one spec cell, both with I1, I2, … as given."""
    plan = plan_of(replace(scenario(), perf_mode=True))
    certificate = tuple(
        Invariant(f"I{n}", h, "fallback_kernel" if h is Held.BROKEN else "seen", f"said of I{n}")
        for n, h in enumerate(rows, 1)
    )
    return run_of(plan, blocks_of(plan), certificates={c.key: certificate for c in plan.cells})


def test_a_certificate_without_a_flaw_passes_and_says_what_holds() -> None:
    (first, _) = GATE.judge(RULE, run_with(Held.HELD, Held.HELD))
    assert (first.state, first.message) == (State.PASS, "I1 I2 hold")


def test_a_broken_invariant_is_invalid_under_its_own_reason() -> None:
    (first, _) = GATE.judge(RULE, run_with(Held.BROKEN, Held.HELD))
    assert (first.state, first.reason_code) == (State.INVALID, "fallback_kernel")
    assert first.message == "I1 is broken: said of I1"


@pytest.mark.parametrize(("accepted", "state"), [("", State.INVALID), ("I1", State.INVALID), ("I1, I2", State.PASS)])
def test_only_a_policy_may_accept_what_cannot_be_seen(accepted: str, state: State) -> None:
    rule = replace(RULE, params={"accept_unseen": accepted})
    (first, _) = GATE.judge(rule, run_with(Held.UNSEEN, Held.UNSEEN, Held.HELD))
    assert first.state is state
    assert first.reason_code == ("all_held" if state is State.PASS else "not_observable")


def test_what_is_broken_is_not_accepted_by_any_policy() -> None:
    rule = replace(RULE, params={"accept_unseen": "I1"})
    assert [v.state for v in GATE.judge(rule, run_with(Held.BROKEN))] == [State.INVALID] * 2


@pytest.mark.parametrize(
    ("accepted", "source", "state"),
    [
        ("I1", "server-profiler", State.PASS),
        ("I1", "profiler", State.INVALID),
        ("I1", None, State.INVALID),
        ("I2", "server-profiler", State.INVALID),
        ("", "server-profiler", State.INVALID),
    ],
)
def test_a_policy_may_accept_what_a_servers_own_profiler_shows_and_nothing_else_that_is_broken(
    accepted: str, source: str | None, state: State
) -> None:
    run = run_with(Held.BROKEN, Held.HELD)
    shown = {
        key: (replace(first, evidence={"source": source}), *rest) for key, (first, *rest) in run.certificates.items()
    }
    rule = replace(RULE, params={"accept_broken": accepted})
    (verdict, _) = GATE.judge(rule, replace(run, certificates=shown))
    assert verdict.state is state
    if state is State.PASS:
        assert verdict.message == "I2 hold; I1 is broken, which the policy accepts: said of I1"


@pytest.mark.parametrize(
    ("accepted", "state"),
    [("I1:fallback_kernel", State.PASS), ("I1:other", State.INVALID), ("I2:fallback_kernel", State.INVALID)],
)
def test_a_policy_may_accept_one_reason_why_an_invariant_is_broken(accepted: str, state: State) -> None:
    rule = replace(RULE, params={"accept_broken": accepted})
    assert [v.state for v in GATE.judge(rule, run_with(Held.BROKEN, Held.HELD))] == [state] * 2


def test_a_perf_mode_cell_without_a_certificate_passes_nothing() -> None:
    run = replace(run_with(Held.HELD), certificates={})
    assert {(v.state, v.reason_code) for v in GATE.judge(RULE, run)} == {(State.INVALID, "not_measured")}


@pytest.mark.parametrize(
    ("required", "option", "params", "state"),
    [
        (True, None, {}, State.NOT_JUDGED),
        (True, None, {"where_asked": True}, State.SKIPPED),
        (True, False, {"where_asked": True}, State.NOT_JUDGED),
        (False, False, {}, State.SKIPPED),
    ],
)
def test_a_required_rule_is_not_judged_without_perf_mode_unless_it_is_for_scenarios_that_ask_for_it(
    required: bool, option: bool | None, params: dict[str, bool], state: State
) -> None:
    plan = plan_of(override(scenario(), perf_mode=option))
    judgements = list(
        GATE.judge(replace(RULE, required=required, params={**RULE.params, **params}), run_of(plan, blocks_of(plan)))
    )
    assert [(v.state, v.reason_code) for v in judgements] == [(state, "perf_mode_off")] * 2

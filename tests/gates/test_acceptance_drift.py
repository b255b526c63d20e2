"""Gate `acceptance-drift`: decided by the interval of the slope, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import AcceptanceDrift, Rule, Run, State, Verdict
from specgate.gates.acceptance_drift import GATE
from tests.support.factories import blocks_of, plan_of, run_of, scenario, with_acceptance

PLAN = plan_of(scenario())
RUN = run_of(PLAN, blocks_of(PLAN))
STEADY = AcceptanceDrift(
    slope=0.0, error=0.01, freedom=30, correlation=0.0, set_error=0.0, sets=1, length=3.0, requests=2000, blocks=()
)


def run_with(drift: AcceptanceDrift | None) -> Run:
    return replace(RUN, cells=tuple(replace(c, drift=drift if c.cell.role.speculative else None) for c in RUN.cells))


def judged(run: Run, **params: float) -> Verdict:
    [verdict] = GATE.judge(Rule("keeps", "acceptance-drift", True, params={"max_fall_pct": 2.0, **params}), run)
    return verdict


def test_no_fall_beyond_the_bound_passes() -> None:
    outcome = judged(run_with(STEADY))
    assert (outcome.state, outcome.reason_code) == (State.PASS, "keeps_up")
    assert outcome.evidence["requests"] == 2000


@pytest.mark.parametrize(("slope", "state"), [(-0.5, State.FAIL), (-0.03, State.PASS), (-0.06, State.INCONCLUSIVE)])
def test_the_whole_interval_decides(slope: float, state: State) -> None:
    """Two percent of 3 tokens are 0.06 tokens, and the interval reaches 0.03 either way."""
    outcome = judged(run_with(replace(STEADY, slope=slope)))
    assert outcome.state is state
    if state is State.INCONCLUSIVE:
        assert "too short to say" in outcome.message and "requests would tell" in str(outcome.next_step)
    if state is State.FAIL:
        assert "falls by 17 % per 1,000 requests" in outcome.message and outcome.next_step


def test_an_acceptance_that_rises_is_no_fall() -> None:
    outcome = judged(run_with(replace(STEADY, slope=0.5)))
    assert outcome.state is State.PASS and "rises by 17 %" in outcome.message


def test_prompt_sets_that_disagree_leave_it_open() -> None:
    assert judged(run_with(replace(STEADY, slope=-0.5, set_error=0.3, sets=8))).state is State.INCONCLUSIVE


def test_fewer_requests_than_asked_for_decide_nothing() -> None:
    for slope in (0.0, -0.5):
        outcome = judged(run_with(replace(STEADY, slope=slope)), min_requests=5000)
        assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "few_requests")


def test_a_cell_without_enough_blocks_is_open_and_forced_acceptance_is_skipped() -> None:
    assert judged(run_with(None)).reason_code == "few_blocks"
    assert judged(with_acceptance(run_with(STEADY), "forced")).state is State.SKIPPED


def test_the_baseline_is_not_judged() -> None:
    [verdict] = GATE.judge(Rule("keeps", "acceptance-drift", True, role="baseline", params={"max_fall_pct": 2.0}), RUN)
    assert (verdict.state, verdict.reason_code) == (State.SKIPPED, "no_cell")

"""The acceptance length of the measured prompts against a floor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Rule, Run, State, Verdict
from specgate.contract.samples.counters import REPORTED_ACCEPTED
from specgate.gates.acceptance import GATE
from tests.support.factories import blocks_of, plan_of, run_of, with_acceptance


def verdict(run: Run, floor: float) -> Verdict:
    (outcome,) = GATE.judge(Rule("acceptance", "acceptance", True, params={"min": floor}), run)
    return outcome


def run(accept: tuple[int, ...] = (2,)) -> Run:
    plan = plan_of()
    return run_of(plan, blocks_of(plan, accept=accept))


def test_a_length_at_the_floor_passes() -> None:
    outcome = verdict(run(), 3.0)
    assert (outcome.state, outcome.evidence["acceptance_length"], outcome.evidence["prompts"]) == (State.PASS, 3.0, 4)


def test_a_length_just_below_the_floor_does_not_read_like_the_floor() -> None:
    outcome = verdict(run((1, 2, 2)), 2.667)
    assert outcome.state is State.FAIL and outcome.message.startswith("acceptance length 2.6667 < 2.667")
    assert "2.667: 0.0003 more" in (outcome.next_step or "")


def test_a_length_below_the_floor_fails_and_says_how_much_is_missing() -> None:
    outcome = verdict(run(), 3.4)
    assert (outcome.state, outcome.reason_code) == (State.FAIL, "below_min")
    assert "3.4" in (outcome.next_step or "") and "0.40" in (outcome.next_step or "")


@pytest.mark.parametrize(
    ("own_tokens", "state"), [(0, State.FAIL), (12, State.PASS), (13, State.INVALID), (-1, State.INVALID)]
)
def test_a_floor_of_the_engines_own_count_is_held_against_that_count(own_tokens: int, state: State) -> None:
    """Two drafts are emitted beyond each step's own token. With that token counted, too, it is a length of 4."""
    plan = plan_of()
    blocks = blocks_of(plan, accept=(2,), change=lambda b: replace(b, counters={REPORTED_ACCEPTED: 24 + own_tokens}))
    rule = Rule("acceptance", "acceptance", True, params={"min": 3.5, "as_reported": True})
    (outcome,) = GATE.judge(rule, run_of(plan, blocks))
    assert outcome.state is state
    if state is State.INVALID:
        assert outcome.reason_code == "counter_identity" and "24 accepted drafts" in outcome.message
        return
    assert outcome.evidence["acceptance_length"] == 3.0 and verdict(run_of(plan, blocks), 3.5).state is State.FAIL
    (other,) = GATE.judge(rule, run())
    assert (other.state, other.evidence["acceptance_length"]) == (State.FAIL, 3.0)


def test_a_draft_that_is_as_good_as_not_there_is_suspected() -> None:
    step = verdict(run((0,)), 2.2).next_step or ""
    assert "weights not loaded" in step and "capture layers" in step


def test_the_interval_over_prompts_is_evidence_not_judgement() -> None:
    plan = plan_of()
    varied = blocks_of(plan, accept=(3, 0, 3, 2, 3))
    outcome = verdict(run_of(plan, [*varied]), 2.9)
    low, high = outcome.evidence["ci_low"], outcome.evidence["ci_high"]
    assert isinstance(low, float) and isinstance(high, float) and low <= high
    assert outcome.state is State.PASS


def test_without_a_drafted_step_it_cannot_be_judged() -> None:
    plan = plan_of()
    silent = blocks_of(plan, accept=(0,), change=lambda b: replace(b, drafted=((0,),) * 12, counters={}))
    outcome = verdict(run_of(plan, silent), 1.0)
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "no_drafts")


@pytest.mark.parametrize("floor", [1.0, 4.0])
def test_the_acceptance_of_forced_cycles_or_of_a_stand_in_satisfies_no_floor(floor: float) -> None:
    forced = run()
    by_pair = replace(forced, pair=replace(forced.pair, acceptance="forced"))
    for made in (by_pair, with_acceptance(forced, "forced")):
        outcome = verdict(made, floor)
        assert (outcome.state, outcome.reason_code) == (State.INVALID, "forced_acceptance")
    outcome = verdict(with_acceptance(forced, "stand-in"), floor)
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "stand_in_drafter")


def test_planted_acceptance_is_measured_and_counts() -> None:
    measured = run()
    assert verdict(replace(measured, pair=replace(measured.pair, acceptance="planted")), 1.0).state is State.PASS

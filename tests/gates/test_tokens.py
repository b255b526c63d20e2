"""Equal tokens pass, wrong ones are located, near ties are listed, and noise is not excused."""

from __future__ import annotations

from dataclasses import replace

from specgate.core import Rule, Run, State, Verdict
from specgate.gates.tokens import GATE
from tests.support.factories import blocks_of, corrupt, margins_of, plan_of, run_of

RULE = Rule("tokens", "tokens", True, role="spec-*", params={"near_tie_margin": 1e-3})


def verdict(run: Run) -> Verdict:
    (found,) = GATE.judge(RULE, run)
    return found


def test_the_baselines_tokens_pass() -> None:
    plan = plan_of()
    found = verdict(run_of(plan, blocks_of(plan)))
    assert (found.state, found.reason_code, found.evidence["compared_tokens"]) == (State.PASS, "tokens_equal", 8 * 13)


def test_a_wrong_token_is_invalid_and_located() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: corrupt(b, at=7) if b.prompt_set == 2 else b)
    found = verdict(run_of(plan, blocks, margins=margins_of(blocks, 0.25)))
    assert (found.state, found.reason_code, found.evidence["mismatches"]) == (State.INVALID, "token_mismatch", 2)
    assert "prompt set 2, slot 0, token 7" in found.message and "0.25" in found.message


def test_near_ties_alone_pass_and_are_counted() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=corrupt)
    found = verdict(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)))
    assert (found.state, found.reason_code, found.evidence["near_ties"]) == (State.PASS, "near_tie_divergence", 8)


def test_one_mismatch_among_near_ties_is_invalid() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=corrupt)
    found = verdict(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)[1:]))
    assert (found.state, found.evidence["mismatches"], found.evidence["near_ties"]) == (State.INVALID, 1, 7)


def test_rounds_that_do_not_repeat_are_invalid_whatever_the_margins() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if b.round else b)
    found = verdict(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)))
    assert (found.state, found.reason_code) == (State.INVALID, "nondeterministic")


def test_without_a_pair_to_compare_it_cannot_pass() -> None:
    plan = plan_of()
    found = verdict(run_of(plan, [b for b in blocks_of(plan) if b.role.speculative]))
    assert (found.state, found.reason_code) == (State.INVALID, "nothing_compared")


def test_tokens_of_a_forced_run_pass_in_no_way_and_its_baseline_still_does() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan))
    forced = replace(run, engines={k: replace(f, acceptance="forced") for k, f in run.engines.items()})
    found = verdict(forced)
    assert (found.state, found.reason_code) == (State.INVALID, "forced_acceptance")
    (baseline,) = GATE.judge(replace(RULE, role="baseline"), forced)
    assert baseline.state is State.PASS

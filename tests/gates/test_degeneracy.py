"""Loops in the text are measured and held to a ceiling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Block, Rule, Run, State, Verdict
from specgate.gates.degeneracy import GATE
from tests.support.factories import blocks_of, plan_of, run_of, with_acceptance


def verdicts(run: Run, ceiling: float) -> list[Verdict]:
    return list(GATE.judge(Rule("loops", "degeneracy", True, params={"max_repeated_share": ceiling}), run))


def looped(block: Block) -> Block:
    """Spec blocks that say the same token again and again: of n − 7 8-grams one is new."""
    return replace(block, tokens=tuple((5,) * len(t) for t in block.tokens)) if block.role.speculative else block


def test_text_that_loops_fails_and_warns_about_its_acceptance() -> None:
    plan = plan_of()
    baseline, spec = verdicts(run_of(plan, blocks_of(plan, change=looped)), 0.5)
    assert baseline.state is State.PASS
    assert (spec.state, spec.reason_code) == (State.FAIL, "above_max")
    assert spec.evidence["repeated_8gram_share"] == pytest.approx(27 / 28)
    assert "acceptance" in (spec.next_step or "")


def test_a_share_just_above_the_ceiling_does_not_read_like_it() -> None:
    plan = plan_of()
    spec = verdicts(run_of(plan, blocks_of(plan, change=looped)), 0.964)[1]
    assert (spec.state, spec.message) == (State.FAIL, "96.43% of the generated 8-grams are repeats, above 96.4%")


def test_a_share_at_the_ceiling_passes() -> None:
    plan = plan_of()
    share = run_of(plan, blocks_of(plan, change=looped)).cells[1].values["repeated_8gram_share"].value
    assert share is not None
    assert verdicts(run_of(plan, blocks_of(plan, change=looped)), share)[1].state is State.PASS


def test_the_text_of_forced_cycles_is_not_judged_and_the_baselines_is() -> None:
    plan = plan_of()
    baseline, spec = verdicts(with_acceptance(run_of(plan, blocks_of(plan, change=looped)), "forced"), 0.5)
    assert (baseline.state, spec.state, spec.reason_code) == (State.PASS, State.SKIPPED, "forced_acceptance")

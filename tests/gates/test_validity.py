"""Whole cells with sound records may be judged; everything else says why not."""

from __future__ import annotations

from dataclasses import replace

from specgate.core import CellResult, Rule, Run, State, Verdict
from specgate.gates.validity import GATE
from tests.factories import blocks_of, plan_of, run_of

RULE = Rule("records", "validity", True)


def verdicts(run: Run) -> list[Verdict]:
    return list(GATE.judge(RULE, run))


def test_whole_cells_whose_records_add_up_pass() -> None:
    plan = plan_of()
    assert [v.state for v in verdicts(run_of(plan, blocks_of(plan)))] == [State.PASS, State.PASS]


def test_missing_blocks_cannot_be_judged_and_the_run_can_be_resumed() -> None:
    plan = plan_of()
    run = run_of(plan, [b for b in blocks_of(plan) if b.prompt_set != 3])
    found = verdicts(run)[1]
    assert (found.state, found.reason_code, found.evidence["blocks"]) == (State.INVALID, "incomplete", 6)
    assert "2 of 8" in found.message and "--resume" in (found.next_step or "")


def test_speculation_that_was_silently_off_fails_where_a_baseline_passes() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan, accept=(0,), change=lambda b: replace(b, drafted=((0,),) * 12)))
    assert [(v.state, v.reason_code) for v in verdicts(run)] == [
        (State.PASS, "complete"),
        (State.INVALID, "no_drafts"),
    ]


def test_a_stored_record_that_breaks_an_identity_is_invalid_with_the_equation() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan))

    def forge(result: CellResult) -> CellResult:
        if result.acceptance is None:
            return result
        return replace(result, acceptance=replace(result.acceptance, emitted=result.acceptance.emitted + 1))

    found = verdicts(replace(run, cells=tuple(map(forge, run.cells))))[1]
    assert (found.state, found.reason_code) == (State.INVALID, "counter_identity")
    assert "steps + accepted - truncated" in found.message

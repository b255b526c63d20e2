"""Whole cells with sound records may be judged; everything else says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import (
    MAY_NOT_DRAFT,
    PREFIX_CACHE,
    AcceptanceSource,
    Block,
    CellResult,
    DraftCheck,
    Rule,
    Run,
    ScoreCheck,
    State,
    Verdict,
)
from specgate.contract.acceptance import AcceptanceRecord, Totals
from specgate.contract.cycle_budget import CycleBudget, Part
from specgate.contract.traffic import Bytes
from specgate.gates.validity import GATE
from tests.support.factories import block, blocks_of, plan_of, run_of, scenario, with_acceptance

RULE = Rule("records", "validity", True)


def verdicts(run: Run) -> list[Verdict]:
    return list(GATE.judge(RULE, run))


def test_whole_cells_whose_records_add_up_pass() -> None:
    plan = plan_of()
    assert [v.state for v in verdicts(run_of(plan, blocks_of(plan)))] == [State.PASS, State.PASS]


def test_missing_blocks_cannot_be_judged_and_the_run_can_be_resumed() -> None:
    plan = plan_of()
    run = run_of(plan, [b for b in blocks_of(plan) if b.prompt_set != 3])
    judgements = verdicts(run)[1]
    assert (judgements.state, judgements.reason_code, judgements.evidence["blocks"]) == (State.INVALID, "incomplete", 6)
    assert "2 of 8" in judgements.message and "--resume" in (judgements.next_step or "")


def test_speculation_that_was_silently_off_fails_where_a_baseline_passes() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan, accept=(0,), change=lambda b: replace(b, drafted=((0,),) * 12, counters={})))
    assert [(v.state, v.reason_code) for v in verdicts(run)] == [(State.PASS, "complete"), (State.INVALID, "no_drafts")]


def test_a_known_cause_of_missing_drafts_is_said() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan, accept=(0,), change=lambda b: replace(b, drafted=((0,),) * 12, counters={})))
    warnings = ("something else", f"{MAY_NOT_DRAFT}TurboMind takes no draft")
    engines = {key: replace(facts, warnings=warnings) for key, facts in run.engines.items()}
    judgements = verdicts(replace(run, engines=engines))[1]
    assert judgements.reason_code == "no_drafts"
    assert judgements.message == "no step had a draft: speculation was silently off (TurboMind takes no draft)"


def test_a_stored_record_that_breaks_an_identity_is_invalid_with_the_equation() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan))

    def forge(result: CellResult) -> CellResult:
        if result.acceptance is None:
            return result
        return replace(result, acceptance=replace(result.acceptance, emitted=result.acceptance.emitted + 1))

    judgements = verdicts(replace(run, cells=tuple(map(forge, run.cells))))[1]
    assert (judgements.state, judgements.reason_code) == (State.INVALID, "counter_identity")
    assert "steps + accepted - truncated" in judgements.message


def test_a_draft_that_could_not_be_used_is_named_at_spec_cells_and_leaves_the_baseline_alone() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan, accept=(0,), change=lambda b: replace(b, drafted=((0,),) * 12, counters={})))
    error = "draft/model.safetensors: fc.weight is missing\n  a whole checkpoint"
    engines = {key: replace(facts, draft_error=error, has_draft=False) for key, facts in run.engines.items()}
    baseline, spec = verdicts(replace(run, engines=engines))
    assert baseline.state is State.PASS
    assert (spec.state, spec.reason_code) == (State.INVALID, "draft_unusable")
    assert spec.message == "the draft could not be used: draft/model.safetensors: fc.weight is missing"
    assert "start a new run" in (spec.next_step or "")


def test_a_draft_that_broke_in_the_middle_makes_the_cell_invalid_although_other_steps_had_drafts() -> None:
    plan = plan_of()

    def broken(b: Block) -> Block:
        """The last round of spec blocks decodes plainly, and says why."""
        if not b.role.speculative or b.warmup or (b.prompt_set, b.round) != (3, 1):
            return b
        plain = block(plan.rounds[-1], b.role, accept=(0,), drafted=((0,),) * 12)
        return replace(plain, counters={"disabled_draft_error": 12})

    spec = verdicts(run_of(plan, blocks_of(plan, change=broken)))[1]
    assert (spec.state, spec.reason_code) == (State.INVALID, "draft_unusable")
    assert "12 of 96 request-steps decoded plainly" in spec.message
    assert spec.evidence["disabled_draft_error"] == 12


def test_a_prompt_that_came_from_a_cache_is_invalid() -> None:
    plan = plan_of()
    hit = blocks_of(
        plan, change=lambda b: replace(b, counters={**b.counters, "cache_hit_tokens": int(b.position_in_round == 0)})
    )
    judgements = verdicts(run_of(plan, hit))
    assert {(v.state, v.reason_code) for v in judgements} == {(State.INVALID, "cache_hit")}
    assert "came from a cache" in judgements[0].message


def test_a_prefix_cache_that_is_on_by_option_is_reuse_shown_beside_the_baselines() -> None:
    plan = plan_of()
    hit = blocks_of(
        plan, change=lambda b: replace(b, counters={**b.counters, "cache_hit_tokens": 12 if b.role.speculative else 16})
    )
    run = run_of(plan, hit)
    on = {key: replace(facts, details={**facts.details, PREFIX_CACHE: "on"}) for key, facts in run.engines.items()}
    plain, spec = verdicts(replace(run, engines=on))
    assert (plain.state, spec.state) == (State.PASS, State.PASS)
    assert plain.message.endswith("the prefix cache is on: 16 prompt tokens reused per block")
    assert spec.message.endswith("is on: 12 prompt tokens reused per block, 16 by the baseline")


def counted(record: AcceptanceRecord) -> Run:
    """A run of 8 blocks of one request each whose spec cell has this record."""
    plan = plan_of(scenario())
    run = run_of(plan, blocks_of(plan))
    return replace(run, cells=tuple(replace(c, acceptance=c.acceptance and record) for c in run.cells))


def histogram(*hist: int) -> AcceptanceRecord:
    steps, accepted = sum(hist), sum(i * n for i, n in enumerate(hist))
    return AcceptanceRecord(len(hist) - 1, hist, (steps,) * (len(hist) - 1), steps + accepted, 0)


def forcing(run: Run, backend: str, length: float) -> Run:
    """The same run, of an engine that was told to accept `length` tokens per step."""
    engines = {
        key: replace(f, backend=backend, acceptance="forced", details={"forced acceptance length": length})
        for key, f in run.engines.items()
    }
    return replace(run, engines=engines)


def test_drafts_shorter_than_k_are_said_with_what_they_make_of_the_acceptance_rate() -> None:
    judgements = verdicts(counted(AcceptanceRecord(3, (), (), 180, 0, Totals(100, 200, 80))))[1]
    assert judgements.state is State.PASS
    assert judgements.message == (
        "8 blocks, records add up; 200 of 300 draft tokens (K × steps), 2.00 a step: the acceptance rate 40.0 % is of "
        "those that were drafted, 26.7 % are accepted of K × steps"
    )


@pytest.mark.parametrize(("details", "state"), [({}, State.INVALID), ({"chains go on": "1 at 1 request"}, State.PASS)])
def test_a_single_draft_in_every_step_is_no_spec_3_unless_chains_end_early_as_asked(
    details: dict[str, str], state: State
) -> None:
    run = counted(AcceptanceRecord(3, (), (), 180, 0, Totals(100, 100, 80)))
    run = replace(run, engines={key: replace(f, details=details) for key, f in run.engines.items()})
    judgement = verdicts(run)[1]
    assert judgement.state is state and "100 of 300 draft tokens" in judgement.message
    assert (judgement.reason_code == "single_token_mode") == (state is State.INVALID)


def test_the_last_steps_of_requests_may_be_short() -> None:
    """Eight requests, each with a last step that may have had no room for three drafts."""
    judgements = verdicts(counted(AcceptanceRecord(3, (), (), 180, 0, Totals(100, 276, 80))))[1]
    assert judgements.message == "8 blocks, records add up"


def test_forced_acceptance_of_another_distribution_is_invalid() -> None:
    right, wrong = histogram(0, 50, 50, 0), histogram(50, 0, 0, 50)
    assert verdicts(forcing(counted(right), "vllm", 2.5))[1].state is State.PASS
    judgements = verdicts(forcing(counted(wrong), "vllm", 2.5))[1]
    assert (judgements.state, judgements.reason_code) == (State.INVALID, "forced_shape")
    assert "100 of 100 steps accepted something else than 1 or 2" in judgements.message
    assert verdicts(forcing(counted(wrong), "someone", 2.5))[1].state is State.PASS, "its shape is not known"


@pytest.mark.parametrize(
    ("source", "state"), [("real", State.INVALID), ("planted", State.INVALID), ("forced", State.PASS)]
)
def test_acceptance_that_looks_forced_has_to_say_so(source: AcceptanceSource, state: State) -> None:
    run = counted(histogram(0, 500, 0, 0))
    judgements = verdicts(with_acceptance(run, source))[1]
    assert judgements.state is state
    if state is State.INVALID:
        assert (
            judgements.reason_code == "looks_forced" and f"said to be {source}, and looks forced" in judgements.message
        )


def test_unlike_positions_of_a_planted_pair_are_named() -> None:
    judgements = verdicts(with_acceptance(counted(histogram(1428, 3400, 1400, 1964)), "planted"))[1]
    assert judgements.state is State.PASS and "82.6 %, 49.7 %" in judgements.message
    assert "alike" not in verdicts(with_acceptance(counted(histogram(1428, 1240, 990, 4534)), "planted"))[1].message


def with_drafts(drafts: DraftCheck) -> Run:
    run = run_of(plan := plan_of(), blocks_of(plan))
    cells = tuple(
        replace(c, rescored=ScoreCheck("reference", 64, drafts=drafts)) if c.cell.role.speculative else c
        for c in run.cells
    )
    return replace(run, cells=cells)


@pytest.mark.parametrize(("claimed", "state"), [(90, State.PASS), (113, State.PASS)])
def test_accepted_drafts_that_the_pairs_own_draft_explains_are_said(claimed: int, state: State) -> None:
    judgement = verdicts(with_drafts(DraftCheck(100, claimed, 100, 113.0)))[1]
    assert judgement.state is state
    assert f"{claimed} drafts accepted in 100 cycles, 100 by the pair's draft alone" in judgement.message


@pytest.mark.parametrize("claimed", [114, 300])
def test_more_accepted_drafts_than_the_pairs_own_draft_has_right_are_invalid(claimed: int) -> None:
    judgement = verdicts(with_drafts(DraftCheck(100, claimed, 100, 113.0)))[1]
    assert (judgement.state, judgement.reason_code) == (State.INVALID, "not_the_drafts")
    assert f"{claimed} draft tokens" in judgement.message and "has 100 right there (113 allowed)" in judgement.message


def test_drafts_that_nobody_could_check_are_said_to_be_so() -> None:
    judgement = verdicts(with_drafts(DraftCheck(unchecked="option tree may draft otherwise")))[1]
    assert judgement.state is State.PASS and "drafts not checked: option tree" in judgement.message


@pytest.mark.parametrize(("cycle_ms", "words"), [(2.9, None), (3.1, "3.1 times"), (12.0, "12.0 times")])
def test_a_baseline_that_takes_far_longer_than_its_bytes_is_named(cycle_ms: float, words: str | None) -> None:
    run = run_of(plan := plan_of(), blocks_of(plan))
    key = run.cells[0].cell.key
    part = Part("verify", cycle_ms, Bytes(1e9), 1.0)
    judgement = verdicts(replace(run, budgets={key: CycleBudget(10, cycle_ms, 64.0, (part,))}))[0]
    assert judgement.state is State.PASS
    assert (words is None) == ("bytes" not in judgement.message) and (words or "") in judgement.message

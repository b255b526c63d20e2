"""An interval decides: above the floor, below it, or neither."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from specgate.contract import Bandwidth, BetweenRuns, CycleBudget, Rule, Run, State, Verdict
from specgate.contract.cycle_budget import Ceiling, Limit
from specgate.contract.routing.use import ExpertUse
from specgate.contract.samples.counters import AS_TEXTS
from specgate.gates.speed import GATE, unless_overlap
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario, with_acceptance


def verdict(run: Run, floor: float) -> Verdict:
    (outcome,) = GATE.judge(Rule("speed", "speed", True, params={"min": floor}), run)
    return outcome


def run(jitter: float = 0.002, prompt_sets: int = 4, rounds: int = 2) -> Run:
    """Cycles of 14 ms that emit 34 tokens in 12 steps, against steps of 10 ms: twice as fast, give or take `jitter`."""
    plan = plan_of(scenario(prompt_sets=prompt_sets, rounds=rounds))
    return run_of(plan, blocks_of(plan, jitter=jitter))


def test_an_interval_above_the_floor_passes() -> None:
    outcome = verdict(run(), 1.5)
    assert (outcome.state, outcome.evidence["pairs"]) == (State.PASS, 8)


def test_an_interval_below_the_floor_fails_and_says_what_would_do() -> None:
    outcome = verdict(run(), 2.5)
    assert (outcome.state, outcome.reason_code) == (State.FAIL, "below_min")
    speedup = outcome.evidence["decode_speedup_ratio"]
    assert isinstance(speedup, float)
    assert f"{2.5 / speedup:.2f} times as fast" in (outcome.next_step or "")


def test_two_pairs_cannot_tell() -> None:
    outcome = verdict(run(prompt_sets=2, rounds=1), 1.0)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "few_pairs")


def test_pairs_that_no_look_has_judged_are_not_called_too_few_beside_their_interval() -> None:
    plan = plan_of(scenario(prompt_sets=8, rounds=4))
    cut = run_of(plan, [b for b in blocks_of(plan) if b.round == 0], status="interrupted")
    speedup = cut.comparisons[0].speedup
    outcome = verdict(cut, 1.0)
    assert speedup.ci_low is not None and outcome.reason_code == "few_pairs"
    assert outcome.message.startswith(f"{speedup.value:.3f}x over 8 pairs: no interim look has judged them")


def test_speed_withheld_for_texts_compared_as_texts_is_not_judged() -> None:
    plan = plan_of()
    texts = blocks_of(plan, change=lambda b: replace(corrupt(b), counters={**b.counters, AS_TEXTS: 1}))
    outcome = verdict(run_of(plan, texts), 1.0)
    assert (outcome.state, outcome.reason_code) == (State.NOT_JUDGED, "token_mismatch")


def test_blocks_that_emit_nothing_leave_no_pair_to_judge() -> None:
    plan = plan_of()
    empty = blocks_of(
        plan, steps=1, change=lambda b: replace(b, accepted=(), drafted=(), step_ns=(), tokens=((b.tokens[0][0],),))
    )
    assert verdict(run_of(plan, empty), 1.0).state is State.INVALID


def test_the_speed_of_a_forced_run_is_judged_and_says_that_it_was_forced() -> None:
    outcome = verdict(with_acceptance(run(), "forced"), 1.5)
    assert outcome.state is State.PASS and outcome.message.endswith("acceptance was forced")


def test_a_speed_that_hangs_on_other_than_real_acceptance_has_that_in_its_evidence() -> None:
    assert "acceptance" not in verdict(run(), 1.5).evidence
    assert verdict(with_acceptance(run(), "stand-in"), 1.5).evidence["acceptance"] == "stand-in"


def test_with_several_looks_the_verdict_names_the_one_that_decided_and_its_confidence() -> None:
    outcome = verdict(run(rounds=4), 1.5)
    assert outcome.state is State.PASS and "99.58 % interval" in outcome.message and "look 1 of 2" in outcome.message
    assert (outcome.evidence["pairs"], outcome.evidence["look"], outcome.evidence["looks"]) == (8, 1, 2)


def test_a_run_that_ended_between_its_looks_is_to_be_continued() -> None:
    plan = plan_of(scenario(rounds=4))
    outcome = verdict(run_of(plan, blocks_of(plan, jitter=0.3)[:20]), 2.0)
    assert outcome.state is State.INCONCLUSIVE and "--resume" in (outcome.next_step or "")


def test_a_fail_names_the_acceptance_length_that_would_do_where_the_draft_length_allows_it() -> None:
    plan = plan_of()
    slow = run_of(plan, blocks_of(plan, accept=(1,), cycle_ns=14_000_000))  # AL 2, 2 / 1.4 as fast
    near, far = verdict(slow, 1.6), verdict(slow, 4.0)
    speedup = near.evidence["decode_speedup_ratio"]
    assert isinstance(speedup, float)
    assert f"AL would have to be {2 * 1.6 / speedup:.2f} (it is 2.00)" in (near.next_step or "")
    assert "accepting every draft (AL 4) would not do" in (far.next_step or "")


def test_a_whole_request_is_not_said_to_gain_by_acceptance_alone() -> None:
    plan = plan_of(scenario(kind="full"))
    outcome = verdict(run_of(plan, blocks_of(plan)), 4.0)
    assert "prefill included" in (outcome.next_step or "") and "AL" not in (outcome.next_step or "")


def test_what_the_machine_can_tell_is_named_where_it_is_known() -> None:
    measured = run()
    known = replace(measured, mde={measured.comparisons[0].cell.key: 0.014})
    assert "this machine can tell 1.4 %" in verdict(known, 1.5).message
    assert "can tell" not in verdict(measured, 1.5).message
    hopeless = replace(measured, mde=dict.fromkeys(known.mde, 30.49))
    assert "can tell" not in verdict(hopeless, 1.5).message


def test_an_interval_that_decides_nothing_and_reaches_beyond_a_factor_of_2_is_left_out() -> None:
    outcome = verdict(run(jitter=0.3, prompt_sets=2), 1.9)
    assert outcome.state is State.INCONCLUSIVE and "interval" not in outcome.message
    assert "4 pairs, too few to bound it within a factor of 2" in outcome.message
    assert number(outcome, "ci_high") > 4


def limited(highest: float) -> Run:
    """The run, with a limit: what its cycle would give at its floor."""
    output = run()
    key = output.comparisons[0].cell.key
    budget = CycleBudget(96, 14.0, 70.0, (), limit=Limit(highest, highest))
    memory = Bandwidth("2026-11-21T12:00:00+00:00", "NVIDIA H200", None, 1 << 30, 30, 4e12, 0.001)
    return replace(output, budgets={key: budget}, bandwidth=memory)


def test_a_floor_beyond_the_cycles_own_is_said_to_be_out_of_reach() -> None:
    step = verdict(limited(2.3), 2.5).next_step or ""
    assert step.endswith(
        "; this gate cannot be reached on NVIDIA H200 with this pair: 2.30x with the cycle at its floor"
    )
    assert "AL would have to be" in step


def test_a_floor_within_reach_comes_with_how_far_the_cycle_could_go() -> None:
    assert (verdict(limited(3.1), 2.5).next_step or "").endswith("; with the cycle at its floor it would be 3.10x")
    assert "at its floor" not in (verdict(run(), 2.5).next_step or "")


@pytest.mark.parametrize(
    ("needed", "unless"),
    [
        (0.4, " unless the expert overlap is 0.40 or more (it is -0.02)"),
        (0.004, " unless the expert overlap is at least that of independent tokens (it is -0.02)"),
        (0.0, " unless the expert overlap is at least that of independent tokens (it is -0.02)"),
        (None, ""),
    ],
)
def test_a_floor_out_of_reach_comes_with_the_overlap_that_would_do(needed: float | None, unless: str) -> None:
    use = ExpertUse(32, 4, True, 13.0, 12.5, 2.6e9, -0.02, ())
    ceilings = (Ceiling("fast", 2.5, None, None, False, needed),)
    budget = CycleBudget(96, 14.0, 70.0, (), ceilings=ceilings, experts=use)
    assert unless_overlap(budget, 2.5) == unless


# ── what a verdict allows for ─────────────────────────────────────────────────────────────────────────────────────────


def drawn(jitter: float = 0.002, rounds: int = 4, **known: object) -> Run:
    """A run whose block times vary by `jitter`."""
    plan = plan_of(scenario(prompt_sets=4, rounds=rounds))
    measured = run_of(plan, blocks_of(plan, jitter=jitter))
    return replace(measured, **known)  # type: ignore[arg-type]  # fields of Run


def number(result: Verdict, key: str) -> float:
    value = result.evidence[key]
    assert isinstance(value, int | float)
    return value


def test_a_verdict_says_what_it_allows_for_and_that_it_is_assumed() -> None:
    outcome = verdict(drawn(), 1.5)
    assert outcome.state is State.PASS
    assert outcome.evidence["process_sd"] == 0.0052 and outcome.evidence["processes"] is None
    assert "process to process 0.52 % (sd, assumed)" in outcome.message
    assert (outcome.evidence["error_pass"], outcome.evidence["error_fail"]) == (0.0025, 0.00175)
    assert number(outcome, "confidence") == 1 - 0.0025 - 0.00175


def test_what_was_measured_between_processes_takes_the_place_of_what_is_assumed() -> None:
    measured = drawn()
    key = measured.comparisons[0].cell.key
    known = replace(measured, between_runs={key: BetweenRuns(0.0001, 4)})
    middle = measured.comparisons[0].speedup.value
    assert middle is not None
    assert verdict(measured, middle * 0.99).state is State.INCONCLUSIVE
    outcome = verdict(known, middle * 0.99)
    assert outcome.state is State.PASS and "(sd, 5 measured)" in outcome.message
    assert "least_process_sd" not in outcome.evidence


def test_a_verdict_says_where_more_is_allowed_for_than_was_measured() -> None:
    measured = drawn()
    key = measured.comparisons[0].cell.key
    outcome = verdict(replace(measured, between_runs={key: BetweenRuns(0.0001, 4, least_process_sd=0.0013)}), 1.5)
    assert "process to process 0.01 % (sd, 5 measured; 0.13 % is the least that counts)" in outcome.message
    assert outcome.evidence["least_process_sd"] == 0.0013
    larger = verdict(replace(measured, between_runs={key: BetweenRuns(0.004, 4, least_process_sd=0.0013)}), 1.5)
    assert "(sd, 5 measured)" in larger.message


def test_a_floor_nearer_than_processes_differ_asks_for_a_calibration_and_says_what_can_be_told() -> None:
    measured = drawn()
    middle = measured.comparisons[0].speedup.value
    assert middle is not None
    outcome = verdict(measured, middle * 0.995)
    assert outcome.state is State.INCONCLUSIVE
    assert re.search(
        r"so near .*x two processes may differ by chance .* specgate machine calibrate measures",
        outcome.next_step or "",
    )


def test_noise_within_the_run_asks_for_rounds() -> None:
    outcome = verdict(drawn(jitter=0.02), 1.94)
    assert outcome.state is State.INCONCLUSIVE
    match = re.search(r"more rounds should decide it: --resume RUN --measurement-runs (\d+)", outcome.next_step or "")
    assert match and int(match[1]) > 4 and int(match[1]) % 2 == 0


def test_required_decisions_share_the_error_of_a_fail_and_leave_that_of_a_pass() -> None:
    outcome = verdict(drawn(required_decisions=10), 1.5)
    assert (outcome.evidence["error_pass"], outcome.evidence["error_fail"]) == (0.0025, 0.000175)


def test_the_interval_beside_a_speed_up_allows_for_processes_too() -> None:
    value = drawn(jitter=0.0).comparisons[0].speedup
    assert value.value is not None and value.ci_low is not None
    assert math.log(value.value / value.ci_low) == pytest.approx(2.241403 * 0.0052, rel=1e-4)

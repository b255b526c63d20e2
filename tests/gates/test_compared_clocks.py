"""Gate `environment`: roles whose clocks follow the same curve are not rejected for their lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Rule, Run, State, Verdict
from specgate.contract.conditions import CLOCK_EVENTS, ClockComparison, GpuConditions, RoleClock, Sample
from specgate.gates.environment import GATE, different_clocks
from specgate.reports.common import machine
from tests.support.machine.heated import answered_late, heated, heated_run
from tests.support.surroundings import gpu, watched_run

PARAMS = {"gpu": True, "max_other_cpu_share": 0.5, "max_clock_shift": 0.05, "max_clock_jump_s": 1.0}
RULE = Rule("quiet", "environment", True, params=PARAMS)


def conditions_of_gpu(run: Run) -> GpuConditions:
    (result,) = (c.gpu for c in run.conditions.values())
    assert result is not None
    return result


def judged(run: Run) -> Verdict:
    return next(GATE.judge(RULE, run))


def test_the_role_that_decodes_for_a_shorter_time_is_not_rejected() -> None:
    outcome = judged(heated_run())
    assert (outcome.state, outcome.reason_code) == (State.PASS, "undisturbed")
    assert isinstance(outcome.evidence["clock_shift"], float) and outcome.evidence["clock_shift"] < 0.02
    assert isinstance(outcome.evidence["clock_shift_margin"], float) and outcome.evidence["clock_shift_margin"] < 0.05
    assert outcome.evidence["clocks_untold"] == "none"


@pytest.mark.parametrize("slower", ["baseline", "spec-3"])
def test_a_clock_lower_by_8_percent_is_rejected_with_the_clocks_that_were_compared(slower: str) -> None:
    outcome = judged(heated_run(scales={slower: 0.92}))
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, "clock_shift")
    assert "over the first 2.15 s of decoding; in prefill" in outcome.message
    assert f"{slower} 1408 MHz (" in outcome.message and " samples)" in outcome.message
    assert outcome.evidence["clock_shift"] == pytest.approx(0.08, abs=0.015)


@pytest.mark.parametrize(("reason", "explained"), [("sw_power_cap", True), ("applications_clocks_setting", False)])
def test_a_shift_that_the_power_cap_explains_is_rejected_with_that_said(reason: str, explained: bool) -> None:
    bits = next(bit for bit, name in CLOCK_EVENTS.items() if name == reason)
    outcome = judged(heated_run(scales={"spec-3": 0.92}, reasons=bits))
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, "clock_shift")
    assert ("in decoding the power cap lowers the clock of spec-3 (1,4" in outcome.message) is explained
    assert outcome.evidence["clock_shift"] == pytest.approx(0.08, abs=0.015)


OWN_POWER = replace(RULE, params={**PARAMS, "own_power": True})


@pytest.mark.parametrize("prompt_sets", [16, 3])  # as many samples as tell, and a handful
@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("sw_power_cap", State.PASS),
        ("applications_clocks_setting", State.ENV_REJECTED),
        ("sw_thermal_slowdown", State.ENV_REJECTED),
    ],
)
def test_a_role_whose_own_work_reaches_the_power_cap_is_named_and_not_rejected(
    reason: str, state: State, prompt_sets: int
) -> None:
    bits = next(bit for bit, name in CLOCK_EVENTS.items() if name == reason)
    run = heated_run(lambda at_s: 1_600, scales={"spec-3": 0.8}, reasons=bits, prompt_sets=prompt_sets)
    first = next(GATE.judge(OWN_POWER, run))
    assert first.state is state
    assert judged(run).state is State.ENV_REJECTED, "without own_power"
    if state is State.PASS:
        assert "in decoding the power cap lowers the clock of spec-3 (1,280 MHz" in first.message
        assert "that is a part of what spec-3 costs on this GPU" in first.message


def test_the_power_cap_of_one_role_rejects_no_other_pair() -> None:
    """spec-5 is slower by its own power. Of spec-3 a handful of samples lie low, and all of its decoding does not."""
    data = {
        role: RoleClock(mhz, 3.0, 20, 16, 60, 2.0, 1.0, 1.0) for role, mhz in (("baseline", 1_700), ("spec-5", 1_550))
    }
    handful = {"spec-3": RoleClock(1_600, None, 1, 2, 3, 0.4, 1.0, 1.0)}
    conditions = replace(
        conditions_of_gpu(heated_run()),
        sm_clock_mhz={"baseline": 1_700, "spec-3": 1_700, "spec-5": 1_550},
        prefill_clock_mhz={},
        common_clocks=ClockComparison(data | handful),
    )
    assert list(different_clocks(conditions, 0.05, own_power=True)) == []
    (finding,) = different_clocks(conditions, 0.05, own_power=False)
    assert "the power cap lowers the clock of spec-5 (1,550 MHz" in finding.message
    assert "own_power" in finding.next_step, "longer blocks would not change it"


def test_a_role_that_is_slower_and_less_often_at_the_power_cap_is_rejected() -> None:
    """Its clock has another reason than its own work."""
    plan, blocks, samples = heated(lambda at_s: 1_600, scales={"spec-3": 0.8}, reasons=0x4)
    spec = [b.span_ns for b in blocks if b.role.speculative and b.span_ns]

    def is_spec(s: Sample) -> bool:
        return any(a <= s.monotonic_ns < b for a, b in spec)

    alone = [gpu(s, clock_event_reasons=0 if is_spec(s) else 0x4) for s in samples]
    assert next(GATE.judge(OWN_POWER, watched_run(alone, blocks, plan))).state is State.ENV_REJECTED


def test_a_shift_in_prefill_alone_is_rejected() -> None:
    plan, blocks, samples = heated()
    spec = [b.span_ns for b in blocks if b.role.speculative and b.span_ns]
    prefills = [(begin, begin + 600_000_000) for begin, _ in spec]
    lowered = [gpu(s, sm_clock_mhz=1300) if any(a <= s.monotonic_ns < b for a, b in prefills) else s for s in samples]
    outcome = judged(watched_run(lowered, blocks, plan))
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, "clock_shift")
    assert "spec-3 1300 MHz" in outcome.message.partition("in prefill")[2]


LATE = {"baseline": 1.0, "spec-3": 0.3}
"""Of an answer whose events each repeat all tokens so far, more is read where each has one token."""


def test_an_answer_that_takes_long_to_read_hides_no_part_of_its_prefill_where_its_begin_is_told() -> None:
    run = answered_late(LATE, stating=LATE)
    outcome, common_clocks = judged(run), conditions_of_gpu(run).common_clocks
    assert (outcome.state, outcome.reason_code) == (State.PASS, "undisturbed")
    assert common_clocks is not None and [clock.part_s for clock in common_clocks.prefill.values()] == [1.25, 1.25]
    baseline, spec = (common_clocks.prefill[role].mhz or 0.0 for role in ("baseline", "spec-3"))
    assert baseline == pytest.approx(spec, rel=0.01) and baseline == pytest.approx(1690, rel=0.02)


@pytest.mark.parametrize("stating", [(), ("baseline",), ("spec-3",)])
def test_a_run_that_does_not_always_say_when_prefill_began_is_judged_as_before(stating: tuple[str, ...]) -> None:
    """Of the baseline's prefill, the last 0.23 s surely lie in it: there the clock is lowest."""
    run = answered_late(LATE, stating=stating)
    outcome, common_clocks = judged(run), conditions_of_gpu(run).common_clocks
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, "clock_shift")
    assert common_clocks is not None and common_clocks.prefill["baseline"].part_s == pytest.approx(0.23)
    assert "in prefill" in outcome.message


def test_where_samples_do_not_tell_the_clocks_at_the_same_times_whole_means_that_differ_reject() -> None:
    lengths = {"baseline": 0.3, "spec-3": 0.15}
    outcome = judged(heated_run(lambda at_s: 1_950, lengths, scales={"spec-3": 0.8}, prompt_sets=4))
    assert "decoding" in str(outcome.evidence["clocks_untold"])
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, "clock_shift")
    assert outcome.next_step == "measure again, longer blocks"


def test_a_handful_of_samples_of_one_clock_rejects_nothing_and_says_so() -> None:
    """As in a run on traces: prefills of 0.2 s and decoding of 0.3 s or less, sampled every half second."""
    outcome = judged(heated_run(lambda at_s: 1_950, {"baseline": 0.3, "spec-3": 0.15}, prompt_sets=4))
    assert outcome.state is State.PASS
    assert "too few samples to compare the roles' clocks while decoding (" in outcome.message
    assert "decoding" in str(outcome.evidence["clocks_untold"])
    assert str(outcome.evidence["clock_samples"]).startswith("decoding: ")


def test_reports_show_the_compared_clocks_beside_the_whole_means() -> None:
    plan, blocks, samples = heated()
    run = watched_run([gpu(s, clock_event_reasons=0x4) for s in samples], blocks, plan)
    (sentence,) = machine.sentences(run)
    assert "MHz of at most 1,980 (over the first 2.15 s of decoding " in sentence
    table = machine.clocks(run)
    assert table.head[-1] == "MHz, at the same times of all roles"
    means = [str(row[-1]).split(" ± ") for row in table.rows]
    assert len({round(float(mean.replace(",", "")), -2) for mean, _ in means}) == 1
    assert all(float(error) < 20 for _, error in means)

"""The machine is judged from the journal: each disturbance has its own code, and silence never passes for quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pynvml
import pytest

from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.machine.disturbed_blocks import judge_hosts
from specgate.analysis.verdict import overall
from specgate.contract import Rule, Run, State, Verdict
from specgate.contract.conditions import CpuUse, GpuProcess, Sample
from specgate.errors import ExitCode
from specgate.gates.environment import GATE, clock_shift
from specgate.machine.nvml import GpuProbe
from specgate.planning.gates import machine_limits
from tests.support.factories import blocks_of, plan_of, policy_of, scenario
from tests.support.fake_nvml import Driver, Gpu, liar
from tests.support.surroundings import (
    BLOCKS,
    ENGINE,
    MIDDLE,
    PLAN,
    SAMPLES,
    SECOND,
    UUID,
    disturbed,
    gpu,
    no_gpu,
    watched_run,
    working,
)

PARAMS = {"gpu": True, "max_other_cpu_share": 0.5, "max_clock_shift": 0.05, "max_clock_jump_s": 1.0}
RULE = Rule("quiet", "environment", True, params=PARAMS)
HOST_ONLY = replace(RULE, params={**PARAMS, "gpu": False})
OURS = GpuProcess(ENGINE, "ours")
ALWAYS = slice(None)


def verdicts(samples: Sequence[Sample], rule: Rule = RULE) -> list[Verdict]:
    return list(GATE.judge(rule, watched_run(samples)))


def judged(samples: Sequence[Sample], rule: Rule = RULE) -> Verdict:
    """The verdict of a point, which all its cells share."""
    first, *others = verdicts(samples, rule)
    for other in others:
        assert replace(other, cell=first.cell) == first
    return first


def test_a_quiet_machine_passes_at_every_cell_with_its_figures() -> None:
    outcome = judged(SAMPLES)
    assert (outcome.state, outcome.reason_code) == (State.PASS, "undisturbed")
    assert outcome.evidence["gpu"] == UUID
    assert outcome.evidence["temperature_max_c"] == 51
    assert outcome.evidence["other_cpu_share"] == pytest.approx(0.02)
    assert [v.cell for v in verdicts(SAMPLES)] == ["demo-64/fake/c64/b1/baseline", "demo-64/fake/c64/b1/spec-3"]


def every(**changes: Any) -> list[Sample]:
    return disturbed(lambda s: gpu(s, **changes), ALWAYS)


def once(**changes: Any) -> list[Sample]:
    return disturbed(lambda s: gpu(s, **changes))


def spec_blocks_slower() -> list[Sample]:
    spans = [b.span_ns for b in BLOCKS if b.role.speculative and b.span_ns]

    def clock(s: Sample) -> Sample:
        return gpu(s, sm_clock_mhz=1700) if any(a <= s.monotonic_ns <= b for a, b in spans) else s

    return disturbed(clock, ALWAYS)


def jumped() -> list[Sample]:
    return disturbed(lambda s: replace(s, wall_ns=s.wall_ns - 3600 * SECOND), slice(MIDDLE, None))


def loaded() -> list[Sample]:
    return disturbed(lambda s: replace(s, host=replace(s.host, other_cpu_share=0.9)), ALWAYS)


DISTURBANCES: dict[str, tuple[str, Callable[[], list[Sample]], str]] = {
    "no watch": ("unwatched", list, "16 of 16 blocks have no samples"),
    "a watch that died": ("unwatched", lambda: SAMPLES[:MIDDLE], "16 of 16 blocks have no samples"),
    "a watch that hung": ("unwatched", lambda: [*SAMPLES[:MIDDLE], *SAMPLES[MIDDLE + 12 :]], "no sample for 6.5 s"),
    "no driver": ("nvml_missing", lambda: disturbed(no_gpu, ALWAYS), "NVML Shared Library Not Found"),
    "a driver that went": ("nvml_missing", lambda: disturbed(no_gpu, slice(MIDDLE, None)), "without a GPU reading"),
    "hidden processes": (
        "nvml_missing",
        lambda: every(processes=None, unread={"processes": "Insufficient Permissions"}),
        "does not tell processes: Insufficient Permissions",
    ),
    "hidden clock events": (
        "nvml_missing",
        lambda: once(clock_event_reasons=None, unread={"clock_event_reasons": "Not Supported"}),
        "does not tell clock_event_reasons: Not Supported",
    ),
    "no power": ("nvml_implausible", lambda: once(power_mw=0), "0 where 0 is impossible: power_mw"),
    "an engine never seen": ("nvml_implausible", lambda: every(processes=(), utilization_pct=0), "never showed"),
    "another process": (
        "foreign_process",
        lambda: once(processes=(OURS, GpuProcess(99, "foreign", "trainer"))),
        "pid 99 (trainer)",
    ),
    "memory errors": ("ecc_error", lambda: every(ecc_uncorrected=2), "2 uncorrected memory errors"),
    "rows to remap": ("ecc_error", lambda: every(rows_in_trouble=True), "rows wait to be remapped"),
    "hardware slow-down": ("throttled", lambda: once(clock_event_reasons=0x8), "hw_slowdown"),
    "software thermal slow-down": ("throttled", lambda: once(clock_event_reasons=0x24), "sw_thermal_slowdown"),
    "hardware thermal slow-down": ("throttled", lambda: once(clock_event_reasons=0x40), "hw_thermal_slowdown"),
    "power brake": ("throttled", lambda: once(clock_event_reasons=0x80), "hw_power_brake_slowdown"),
    "heat between two samples": (
        "throttled",
        lambda: disturbed(lambda s: gpu(s, thermal_violation_ns=250_007_000), slice(MIDDLE, None)),
        "0.25 s of thermal violation",
    ),
    "a lowered power limit": ("power_capped", lambda: every(power_limit_mw=500_000), "500 W of 700 W"),
    "roles at two clocks": (
        "clock_shift",
        spec_blocks_slower,
        "spec-3 1700 MHz (36 samples), baseline 1980 MHz (36 samples)",
    ),
    "a wall clock set back": ("clock_jump", jumped, "jumped by 3600.0 s"),
    "others on the host": ("host_loaded", loaded, "others used 90% of the CPU time"),
}


GPU_CODES = {
    *("nvml_missing", "nvml_implausible", "foreign_process", "ecc_error", "throttled", "power_capped", "clock_shift")
}


@pytest.mark.parametrize(("code", "samples", "message"), DISTURBANCES.values(), ids=list(DISTURBANCES))
def test_each_disturbance_rejects_with_its_own_code_what_was_seen_and_what_to_do(
    code: str, samples: Callable[[], list[Sample]], message: str
) -> None:
    """Without a GPU, only the host is judged, and nothing known is skipped."""
    seen = samples()
    outcome = judged(seen)
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, code)
    assert message in outcome.message
    assert outcome.next_step
    assert "also" not in outcome.evidence
    of_host = judged(seen, HOST_ONLY)
    if code in GPU_CODES:
        assert of_host.state is State.PASS and "gpu" not in of_host.evidence
    else:
        state = State.SKIPPED if code == "unwatched" else State.ENV_REJECTED
        assert (of_host.state, of_host.reason_code) == (state, code)


@pytest.mark.parametrize(
    "changes",
    [
        {"clock_event_reasons": 0x1 | 0x2 | 0x4},
        {"power_violation_ns": 10**9},
        {"ecc_uncorrected": None, "unread": {"ecc_uncorrected": "Not Supported"}},
        {"thermal_violation_ns": None, "unread": {"thermal_violation_ns": "Not Supported"}},
        {"power_limit_mw": 750_000},
    ],
    ids=["idle, set clocks and power cap", "power", "no ECC", "no violation counters", "a raised limit"],
)
def test_what_a_sound_gpu_may_do_or_lack_does_not_reject(changes: dict[str, Any]) -> None:
    assert judged(every(**changes)).state is State.PASS


def test_several_disturbances_are_all_named() -> None:
    hot = once(clock_event_reasons=0x40, processes=(OURS, GpuProcess(99, "foreign")))
    outcome = judged(hot)
    assert (outcome.reason_code, outcome.evidence["also"]) == ("foreign_process", "throttled")


def test_the_driver_that_gives_zeros_everywhere_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([liar(UUID)]))
    with GpuProbe(UUID, lambda pid: OURS) as probe:
        reading = probe.read()
    outcome = judged(disturbed(lambda s: replace(s, gpu=reading), ALWAYS))
    assert (outcome.state, outcome.reason_code) == (State.ENV_REJECTED, "nvml_implausible")


def test_the_driver_of_a_healthy_gpu_at_work_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([Gpu(uuid=UUID).busy(ENGINE)]))
    with GpuProbe(UUID, lambda pid: OURS) as probe:
        reading = probe.read()
    assert judged(disturbed(lambda s: replace(s, gpu=reading), ALWAYS)).state is State.PASS


# ── a policy that does without a GPU ─────────────────────────────────────────────────────────────────────────────────


def test_a_rule_that_only_advises_has_no_advice_about_a_gpu_that_is_not_here() -> None:
    """The client of a server may have none."""
    nowhere = [replace(sample, gpu=None) for sample in SAMPLES]
    assert judged(nowhere).state is State.ENV_REJECTED
    assert judged(nowhere, replace(RULE, required=False)).state is State.PASS


# ── block by block ───────────────────────────────────────────────────────────────────────────────────────────────────

BY_BLOCKS = replace(RULE, params={**PARAMS, "max_other_cpu_share": 0.25, "max_cpu_wait": 0.05, "max_set_aside": 0.25})
IDLE = CpuUse(2 * SECOND, 2, 2.0, 2 * SECOND, 2 * SECOND, 0, 2 * SECOND, 0, 0)
BUSY = replace(IDLE, busy_ns=4 * SECOND, waited_ns=SECOND)


def by_blocks(busy: int, samples: Sequence[Sample] = SAMPLES, quiet: CpuUse | None = IDLE) -> Run:
    """The run whose first `busy` measured blocks had a loaded host."""
    measured = [b for b in BLOCKS if not b.warmup]
    loaded = set(map(id, measured[:busy]))
    blocks = [replace(b, cpu=BUSY if id(b) in loaded else quiet) for b in BLOCKS]
    hosts = judge_hosts(PLAN, blocks, machine_limits(policy_of(BY_BLOCKS)), {})
    return replace(watched_run(samples), conditions=conditions_of(PLAN, blocks, samples, hosts))


def test_a_disturbed_block_is_set_aside_and_the_verdict_says_how_many_and_why() -> None:
    first = next(GATE.judge(BY_BLOCKS, by_blocks(1)))
    assert (first.state, first.reason_code) == (State.PASS, "set_aside")
    message = "2 of 8 rounds set aside: of 16 blocks 1 disturbed; a thread waited for a CPU for up to 50% of the block"
    assert message in first.message
    assert (first.evidence["disturbed_blocks"], first.evidence["set_aside_rounds"]) == (1, 2)


def test_more_than_may_be_set_aside_rejects_the_run() -> None:
    run = by_blocks(5)
    first = next(GATE.judge(BY_BLOCKS, run))
    assert (first.state, first.reason_code) == (State.ENV_REJECTED, "host_loaded")
    assert "6 of 8 rounds are disturbed, and at most 25% may be set aside: of 16 blocks 5 disturbed" in first.message
    assert overall(replace(run, verdicts=(first,))) == (State.ENV_REJECTED, ExitCode.ENV_REJECTED)


def test_a_quiet_host_is_said_to_be_quiet_only_where_it_was_seen() -> None:
    assert next(GATE.judge(BY_BLOCKS, by_blocks(0))).reason_code == "undisturbed"
    blind = [replace(s, host=replace(s.host, other_cpu_share=None)) for s in SAMPLES]
    hidden = CpuUse(2 * SECOND, 2, 2.0, unread={"busy_ns": "hidden", "ours_ns": "hidden", "waited_ns": "hidden"})
    run = by_blocks(0, blind, hidden)
    with_gpu, without = (next(GATE.judge(rule, run)) for rule in (BY_BLOCKS, host_only(BY_BLOCKS)))
    assert (with_gpu.state, without.state) == (State.PASS, State.SKIPPED)
    for values in (with_gpu, without):
        assert values.reason_code == "host_unseen"
        assert "nothing disturbed 16 blocks" not in values.message
        assert "not seen: the CPUs' busy time (hidden)" in values.message


def host_only(rule: Rule) -> Rule:
    return replace(rule, params={**rule.params, "gpu": False})


def test_where_blocks_do_not_tell_of_others_the_mean_of_the_point_still_rejects() -> None:
    hidden = CpuUse(2 * SECOND, 2, 2.0, wanted_ns=2 * SECOND, waited_ns=0, unread={"busy_ns": "hidden"})
    first = next(GATE.judge(BY_BLOCKS, by_blocks(0, loaded(), hidden)))
    assert (first.state, first.reason_code) == (State.ENV_REJECTED, "host_loaded")
    assert "others used 90% of the CPU time" in first.message
    assert next(GATE.judge(BY_BLOCKS, by_blocks(0, loaded()))).state is State.PASS  # between the blocks only


def test_a_rule_without_these_limits_judges_by_the_mean() -> None:
    run = by_blocks(5)
    before = replace(run, conditions={key: replace(c, host=None) for key, c in run.conditions.items()})
    first = next(GATE.judge(RULE, before))
    assert first == judged(SAMPLES)
    assert first.message == "nothing disturbed 16 blocks (73 samples)"


# ── the power cap ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gpu_at_its_power_cap_is_named_with_both_clocks_and_both_powers() -> None:
    capped = every(clock_event_reasons=0x4, sm_clock_mhz=1845, max_sm_clock_mhz=1980, power_mw=698_000)
    outcome = judged(capped)
    assert outcome.state is State.PASS
    assert "the GPU was at its power cap in 100% of the samples" in outcome.message
    assert "SM clock spec-3 1,845, baseline 1,845 MHz of at most 1,980, 698 W of 700 W" in outcome.message
    assert (outcome.evidence["sm_clock_mhz"], outcome.evidence["max_sm_clock_mhz"]) == (1845, 1980)
    assert "power cap" not in judged(every(max_sm_clock_mhz=1980)).message


def test_a_cap_is_named_where_the_driver_does_not_tell_the_highest_clock() -> None:
    refused = every(clock_event_reasons=0x4, unread={"max_sm_clock_mhz": "Not Supported"})
    assert "MHz of at most ?" in judged(refused).message


def test_the_bits_that_reject_are_the_drivers_slow_downs() -> None:
    from specgate.contract.conditions import THROTTLES

    assert (
        pynvml.nvmlClocksEventReasonHwSlowdown
        | pynvml.nvmlClocksEventReasonSwThermalSlowdown
        | pynvml.nvmlClocksEventReasonHwThermalSlowdown
        | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
    ) == THROTTLES


def shift_at(prefill: tuple[int, int], decode: tuple[int, int]) -> float:
    """Return the clock shift of whole requests that prefill and decode at these clocks, in MHz, of baseline and
    spec.
    """
    plan = plan_of(replace(scenario(prompt_sets=4), kind="full"))
    made, samples_ = [], []
    for number, b in enumerate(blocks_of(plan)):
        begin = number * 10 * SECOND
        share = 8 if b.role.speculative else 2  # of 10 s, so that the mean over a block would differ in any case
        apart = replace(b, prefill_ns=share * SECOND, elapsed_ns=(10 - share) * SECOND)
        made.append(replace(apart, span_ns=(begin, begin + 10 * SECOND)))
        for at in range(10):
            mhz = (prefill if at < share else decode)[b.role.speculative]
            samples_.append(gpu(replace(SAMPLES[0], monotonic_ns=begin + at * SECOND + SECOND // 2), sm_clock_mhz=mhz))
    samples_ = [replace(samples_[0], monotonic_ns=-SECOND), *samples_, replace(samples_[-1], monotonic_ns=10**13)]
    seen = conditions_of(plan, made, samples_)
    (point,) = seen
    return clock_shift(seen[point].gpu)


def test_prefill_is_held_against_prefill_and_decoding_against_decoding() -> None:
    assert shift_at((1550, 1540), (1980, 1975)) == pytest.approx(1 - 1540 / 1550)
    assert shift_at((1550, 1300), (1980, 1980)) == pytest.approx(1 - 1300 / 1550)
    assert shift_at((1550, 1550), (1980, 1700)) == pytest.approx(1 - 1700 / 1980)


def test_cpus_that_were_not_evenly_fast_are_named_and_reject_nothing() -> None:
    shared = judged([working(s, 20_000 * (1 + i % 2)) for i, s in enumerate(SAMPLES)])
    even = judged([working(s, 20_000) for s in SAMPLES])
    assert (shared.state, shared.reason_code) == (State.PASS, "undisturbed") == (even.state, even.reason_code)
    assert "the CPUs were not evenly fast" in shared.message and "evenly" not in even.message
    assert shared.evidence["cpu_slow_share"] == pytest.approx(0.5, abs=0.02) and even.evidence["cpu_slow_share"] == 0.0
    assert "cpu_slow_share" not in judged(SAMPLES).evidence

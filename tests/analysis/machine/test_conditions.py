"""Samples belong to the blocks they were taken around; counters are compared across a point, clocks within blocks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.machine.conditions import conditions_of
from specgate.contract import Served, ServedRequest
from specgate.contract.conditions import ClockReading, GpuProcess
from tests.support.factories import blocks_of, plan_of, scenario
from tests.support.surroundings import BLOCKS, PLAN, SAMPLES, SECOND, conditions, disturbed, gpu, no_gpu, timed, watched

MEASURED = [b for b in BLOCKS if not b.warmup]
WHOLE = slice(None)


def test_a_quiet_machine_is_quiet() -> None:
    watch = conditions(SAMPLES)
    assert watch.blocks == watch.watched == len(MEASURED) == 16
    assert watch.longest_gap_s == pytest.approx(0.5)
    assert watch.clock_jump_s == 0.0
    assert watch.other_cpu_share == pytest.approx(0.02)
    seen = watch.gpu
    assert (seen.missing, seen.zeros, seen.foreign, dict(seen.unread)) == (0, (), (), {})
    assert seen.seen_at_work and seen.thermal_violation_ns == 0 and seen.temperature_c == (51, 51)
    assert seen.sm_clock_mhz == {"baseline": 1980.0, "spec-3": 1980.0}


def test_the_order_of_the_samples_does_not_matter() -> None:
    shuffled = list(SAMPLES)
    random.Random(3).shuffle(shuffled)
    assert conditions(shuffled) == conditions(SAMPLES)


def test_what_happens_before_and_after_the_measured_blocks_of_a_point_is_not_its_own() -> None:
    start, end = MEASURED[0].span_ns, MEASURED[-1].span_ns
    assert start is not None and end is not None
    hot = [
        gpu(s, clock_event_reasons=0x40, temperature_c=95)
        if s.monotonic_ns < start[0] - SECOND // 2 or s.monotonic_ns > end[1] + SECOND // 2
        else s
        for s in SAMPLES
    ]
    assert hot != SAMPLES
    assert conditions(hot) == conditions(SAMPLES)


def test_two_points_have_their_own_conditions() -> None:
    plan = plan_of(scenario("cool"), scenario("hot"))
    blocks = timed(blocks_of(plan))
    border = next(b.span_ns[0] for b in blocks if b.point.scenario == "hot" and b.span_ns)
    samples = [gpu(s, temperature_c=80) if s.monotonic_ns > border else s for s in watched(blocks)]
    cool, hot = conditions_of(plan, blocks, samples).values()
    assert cool.gpu.temperature_c == (51, 51)
    assert hot.gpu.temperature_c == (80, 80)


@given(st.lists(st.integers(0, 10**9), min_size=len(SAMPLES), max_size=len(SAMPLES)))
def test_a_counter_that_only_grows_is_compared_across_the_whole_point(steps: list[int]) -> None:
    total, samples = 5, []
    for result, step in zip(SAMPLES, steps, strict=True):
        total += step
        samples.append(gpu(result, thermal_violation_ns=total))
    first, last = MEASURED[0].span_ns, MEASURED[-1].span_ns
    assert first is not None and last is not None
    before = max((s for s in samples if s.monotonic_ns <= first[0]), key=lambda s: s.monotonic_ns)
    after = min((s for s in samples if s.monotonic_ns >= last[1]), key=lambda s: s.monotonic_ns)
    assert before.gpu and after.gpu
    grown = (after.gpu.thermal_violation_ns or 0) - (before.gpu.thermal_violation_ns or 0)
    assert conditions(samples).gpu.thermal_violation_ns == grown


def test_a_counter_that_starts_again_counts_from_zero() -> None:
    samples = disturbed(lambda s: gpu(s, thermal_violation_ns=3), slice(len(SAMPLES) // 2, None))
    assert conditions(samples).gpu.thermal_violation_ns == 3


def test_clocks_count_within_the_blocks_of_a_role_only() -> None:
    spec = [b.span_ns for b in BLOCKS if b.role.speculative and b.span_ns]
    baseline = [b.span_ns for b in BLOCKS if not b.role.speculative and b.span_ns]

    def clock(at: int) -> int:
        if any(a <= at <= b for a, b in spec):
            return 1500
        return 1980 if any(a <= at <= b for a, b in baseline) else 345

    samples = [gpu(s, sm_clock_mhz=clock(s.monotonic_ns)) for s in SAMPLES]
    assert conditions(samples).gpu.sm_clock_mhz == {"baseline": 1980.0, "spec-3": 1500.0}


def test_prefill_begins_when_the_first_request_is_sent() -> None:
    """In an open loop that may be long after the block began."""
    plan = plan_of(scenario())
    served = [
        replace(
            b,
            prefill_ns=2 * SECOND,
            elapsed_ns=SECOND,
            own_prefill=True,
            began_ns=b.span_ns[0] + SECOND // 4 if b.span_ns else None,
            served=Served((ServedRequest(3 * SECOND // 2, (2 * SECOND, 3 * SECOND), (1, 1)),)),
        )
        for b in timed(blocks_of(plan))
    ]
    watch = conditions(watched(served, interval_ns=SECOND // 10), served, plan).gpu.common_clocks
    assert watch is not None
    assert {clock.part_s for clock in watch.prefill.values()} == {0.5}
    assert {clock.part_s for clock in watch.decoding.values()} == {1.0}


def test_a_throttle_that_was_seen_between_two_samples_only_is_the_points_own() -> None:
    begin = min(b.span_ns[0] for b in MEASURED if b.span_ns)
    within = next(i for i, s in enumerate(SAMPLES) if s.monotonic_ns > begin)
    for at, seen in ((within + 1, 0x40), (0, 0)):  # the first sample of all lies before the point
        hot = list(SAMPLES)
        hot[at] = replace(hot[at], clocks=(ClockReading(hot[at].monotonic_ns - 1, 1200, 0x40),))
        assert conditions(hot).gpu.clock_event_reasons & 0x40 == seen


# ── coverage ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_watch_that_died_before_the_last_block_ended_or_began_after_the_first_did_covers_nothing() -> None:
    start = MEASURED[0].span_ns
    assert start is not None
    late = [s for s in SAMPLES if s.monotonic_ns > start[0]]
    for samples in ([], SAMPLES[: len(SAMPLES) // 2], late):
        watch = conditions(samples)
        assert (watch.blocks, watch.watched) == (16, 0)
    assert conditions([]).samples == 0


def test_a_silence_is_as_long_as_the_time_without_a_sample() -> None:
    silent = slice(len(SAMPLES) // 2, len(SAMPLES) // 2 + 19)
    kept = [s for i, s in enumerate(SAMPLES) if not silent.start <= i < silent.stop]
    assert conditions(kept).longest_gap_s == pytest.approx(10.0)


def test_a_resumed_run_has_a_watch_per_start_whose_clocks_are_not_mixed() -> None:
    """After a reboot the monotonic clock begins anew: both halves have the same times."""
    half = len(BLOCKS) // 2
    first = timed(blocks_of(PLAN)[:half])
    second = [replace(b, worker_generation=2) for b in timed(blocks_of(PLAN)[half:])]
    quiet, hot = watched(first), [gpu(s, temperature_c=70) for s in watched(second, worker_generation=1)]
    watch = conditions([*quiet, *hot], [*first, *second])
    assert watch.watched == watch.blocks == 16
    assert watch.gpu.temperature_c == (51, 70)
    assert watch.clock_jump_s == 0.0


def test_a_wall_clock_that_jumps_is_measured_against_the_monotonic_one() -> None:
    for jump in (7 * SECOND, -7 * SECOND):
        samples = [replace(s, wall_ns=s.wall_ns + jump) if i > 30 else s for i, s in enumerate(SAMPLES)]
        assert conditions(samples).clock_jump_s == pytest.approx(7.0)


# ── processes and silence ────────────────────────────────────────────────────────────────────────────────────────────

OURS = GpuProcess(4711, "ours")


def test_foreign_processes_are_named_once_each() -> None:
    other = GpuProcess(99, "foreign", "trainer")
    samples = disturbed(lambda s: gpu(s, processes=(OURS, other)), slice(20, 40))
    assert conditions(samples).gpu.foreign == ("pid 99 (trainer)",)


def test_where_numbers_are_of_another_namespace_one_newcomer_is_the_engine() -> None:
    engine, other = GpuProcess(50_001, "unseen"), GpuProcess(50_002, "unseen")
    before = [gpu(s, processes=()) for s in SAMPLES[:1]]
    alone = [*before, *(gpu(s, processes=(engine,)) for s in SAMPLES[1:])]
    assert conditions(alone).gpu.foreign == ()
    joined = [*alone[:40], *(gpu(s, processes=(engine, other)) for s in SAMPLES[40:])]
    assert conditions(joined).gpu.foreign == ("pid 50002 (of another namespace)",)


def test_an_unseen_process_that_was_there_before_the_engine_is_foreign() -> None:
    samples = disturbed(lambda s: gpu(s, processes=(GpuProcess(50_001, "unseen"),)), WHOLE)
    assert conditions(samples).gpu.foreign == ("pid 50001 (of another namespace)",)


def test_an_unseen_process_beside_a_recognised_engine_is_foreign() -> None:
    samples = disturbed(lambda s: gpu(s, processes=(OURS, GpuProcess(50_001, "unseen"))))
    assert conditions(samples).gpu.foreign == ("pid 50001 (of another namespace)",)


@pytest.mark.parametrize(
    ("processes", "utilization", "seen"),
    [((OURS,), 0, True), ((), 40, True), ((), 0, False), ((), None, False), (None, None, False)],
)
def test_the_engine_is_seen_at_work_by_its_process_or_by_a_busy_gpu(
    processes: tuple[GpuProcess, ...] | None, utilization: int | None, seen: bool
) -> None:
    samples = disturbed(lambda s: gpu(s, processes=processes, utilization_pct=utilization), WHOLE)
    assert conditions(samples).gpu.seen_at_work is seen


def test_samples_without_a_reading_are_counted_with_the_first_reason() -> None:
    watch = conditions(disturbed(no_gpu, slice(30, 33))).gpu
    assert (watch.missing, watch.why_missing) == (3, "no NVIDIA driver: NVML Shared Library Not Found")


def test_a_reading_in_which_nothing_could_be_read_is_missing() -> None:
    silent = {"processes": None, "clock_event_reasons": None, "memory_total_bytes": None}
    why = {"processes": "GPU is lost"}
    watch = conditions(disturbed(lambda s: gpu(s, **silent, unread=why), slice(30, None))).gpu
    assert watch.missing > 10 and watch.why_missing == "GPU is lost"


def test_a_point_without_measured_blocks_has_no_conditions() -> None:
    assert conditions_of(PLAN, [b for b in BLOCKS if b.warmup], SAMPLES) == {}

"""A point in time: its rounds where they were, and the worst of what the machine did."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specgate.analysis.machine.timeline import ENTRIES
from tests.support.factories import blocks_of, plan_of, scenario
from tests.support.surroundings import (
    BLOCKS,
    PLAN,
    SAMPLES,
    SECOND,
    conditions,
    disturbed,
    gpu,
    no_gpu,
    timed,
    watched,
    working,
)

FOUND = conditions(SAMPLES).timeline
BEGIN = min(b.span_ns[0] for b in BLOCKS if not b.warmup and b.span_ns is not None)


def test_rounds_are_numbered_in_running_order_and_timed_from_the_first_measured_block() -> None:
    assert [turn for turn, *_ in FOUND.rounds] == list(range(8))
    assert FOUND.rounds[0][1] == 0
    begins = [begin for _, begin, _ in FOUND.rounds]
    # Two blocks of 2 s and two pauses of 0.25 s.
    assert begins == pytest.approx([i * 4.5 for i in range(8)])
    assert all(end - begin == pytest.approx(4.25) for _, begin, end in FOUND.rounds)


def test_columns_are_as_long_as_their_times_and_not_longer_than_asked() -> None:
    columns = (FOUND.sm_clock_mhz, FOUND.temperature_c, FOUND.power_w, FOUND.other_cpu_share)
    assert {len(column) for column in columns} == {len(FOUND.at_s)}
    assert 1 < len(FOUND.at_s) <= ENTRIES < len(SAMPLES)
    assert list(FOUND.at_s) == sorted(FOUND.at_s)


def test_one_bad_sample_among_good_ones_is_not_thinned_away() -> None:
    watch = conditions(disturbed(lambda s: gpu(s, sm_clock_mhz=600, temperature_c=91, power_mw=699_000))).timeline
    assert min(c for c in watch.sm_clock_mhz if c is not None) == 600
    assert max(t for t in watch.temperature_c if t is not None) == 91
    assert max(p for p in watch.power_w if p is not None) == 699


def test_without_a_gpu_only_the_host_has_a_column() -> None:
    watch = conditions([no_gpu(s) for s in SAMPLES]).timeline
    assert set(watch.sm_clock_mhz) == set(watch.temperature_c) == set(watch.power_w) == {None}
    assert set(watch.other_cpu_share) == {0.02}


def test_slow_cpus_stand_where_they_were_and_their_shares_add_up_to_that_of_the_point() -> None:
    slow_until = BEGIN + 18 * SECOND
    taken = [40_000 if i % 2 and s.monotonic_ns < slow_until else 20_000 for i, s in enumerate(SAMPLES)]
    watch = conditions([working(s, ns) for s, ns in zip(SAMPLES, taken, strict=True)])
    at, shares = watch.timeline.at_s, [share for share in watch.timeline.slow_cpu_share if share is not None]
    assert len(shares) == len(at)
    assert {share for second, share in zip(at, shares, strict=True) if second < 18} == {0.5}
    assert {share for second, share in zip(at, shares, strict=True) if second >= 18} == {0.0}
    size = math.ceil(watch.samples / ENTRIES)
    sizes = [min(size, watch.samples - before) for before in range(0, watch.samples, size)]
    assert watch.cpu_pace is not None
    assert sum(share * n for share, n in zip(shares, sizes, strict=True)) == watch.cpu_pace.slow > 10


def test_a_stretch_whose_samples_tell_nothing_has_no_share_of_slow_cpus() -> None:
    silent = [working(s, None if s.monotonic_ns < BEGIN + 5 * SECOND else 20_000) for s in SAMPLES]
    watch = conditions(silent).timeline
    assert [share is None for share in watch.slow_cpu_share] == [second < 5 for second in watch.at_s]


def test_where_the_pace_of_a_point_is_not_known_there_is_no_column_of_slow_cpus() -> None:
    assert FOUND.at_s and FOUND.slow_cpu_share == ()


def test_the_watches_of_a_resumed_run_are_put_end_to_end() -> None:
    plan = plan_of(scenario(prompt_sets=1))
    blocks = blocks_of(plan)
    warm, first, second = blocks[:2], blocks[2:4], blocks[4:]
    early = timed([*warm, *first])
    late = [replace(b, worker_generation=1) for b in timed(second, start_ns=9_000 * SECOND)]
    samples = [*watched(early), *watched(late, worker_generation=1)]
    watch = conditions(samples, [*early, *late], plan).timeline
    assert [(begin, end) for _, begin, end in watch.rounds] == [(0, 4.25), (4.25, 8.5)]


def test_a_run_without_times_has_an_empty_timeline() -> None:
    watch = conditions(SAMPLES, [replace(b, span_ns=None) for b in BLOCKS], PLAN).timeline
    assert watch.rounds == () and watch.at_s == ()

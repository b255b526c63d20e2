"""Pairs in time over the machine's strips."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract.conditions import Timeline
from specgate.reports.pictures.machine import over_time
from tests.support.factories import run_of
from tests.support.surroundings import BLOCKS, PLAN, SAMPLES, conditions, no_gpu, working

DRAWS = True

TIMELINE = conditions(SAMPLES).timeline
COMPARISONS = run_of(PLAN, BLOCKS).comparisons


def test_every_strip_and_every_pair_has_its_numbers_in_a_table() -> None:
    shown = over_time("p0", TIMELINE, COMPARISONS)
    assert shown.svg is not None
    pairs, samples = shown.tables
    assert len(pairs.rows) == 8 and len(samples.rows) == len(TIMELINE.at_s)
    assert [str(entry) for entry in samples.rows[0][1:]] == ["1,980", "51.0", "420", "2.0 %"]
    assert "SM clock, MHz 1,980 to 1,980" in shown.svg


def test_a_host_without_a_gpu_shows_the_cpu_and_says_what_was_not_read() -> None:
    shown = over_time("p0", conditions([no_gpu(s) for s in SAMPLES]).timeline, COMPARISONS)
    assert shown.svg is not None and "CPU of others" in shown.svg
    assert "Nothing was read of SM clock, MHz; GPU temperature, °C; GPU power, W." in shown.caption


def test_slow_cpus_have_a_strip_and_a_column_in_percent() -> None:
    middle = SAMPLES[len(SAMPLES) // 2].monotonic_ns
    paced = conditions([working(s, 40_000 if s.monotonic_ns > middle else 20_000) for s in SAMPLES])
    shown = over_time("p0", paced.timeline, COMPARISONS)
    assert shown.svg is not None and "slow CPU samples 0.0 % to 100.0 %" in shown.svg
    assert shown.caption.endswith("Of slow CPU samples they show the share.")
    _, samples = shown.tables
    assert samples.head[-1] == "slow CPU samples"
    assert [str(row[-1]) for row in (samples.rows[0], samples.rows[-1])] == ["0.0 %", "100.0 %"]


def test_results_without_the_pace_of_the_cpus_are_shown_as_before_it() -> None:
    shown = over_time("p0", TIMELINE, COMPARISONS)
    assert shown.svg is not None and "slow CPU" not in shown.svg + shown.caption
    head = ("at s", "SM clock, MHz", "GPU temperature, °C", "GPU power, W", "CPU of others")
    assert tuple(shown.tables[1].head) == head


def test_without_samples_there_is_a_sentence() -> None:
    for timeline in (Timeline(), replace(TIMELINE, at_s=())):
        shown = over_time("p0", timeline, COMPARISONS)
        assert shown.svg is None and "keeps no samples of the machine" in shown.caption


def test_where_no_speed_may_be_quoted_the_machine_is_shown_alone() -> None:
    shown = over_time("p0", TIMELINE, ())
    assert shown.svg is not None and "speed-up" not in shown.svg
    assert "speed-up" not in shown.caption

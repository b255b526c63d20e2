"""Pairs in time over the machine's strips."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract.conditions import Timeline
from specgate.reports.pictures.machine import over_time
from tests.support.factories import run_of
from tests.support.surroundings import BLOCKS, PLAN, SAMPLES, conditions, no_gpu

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


def test_without_samples_there_is_a_sentence() -> None:
    for timeline in (Timeline(), replace(TIMELINE, at_s=())):
        shown = over_time("p0", timeline, COMPARISONS)
        assert shown.svg is None and "keeps no samples of the machine" in shown.caption


def test_where_no_speed_may_be_quoted_the_machine_is_shown_alone() -> None:
    shown = over_time("p0", TIMELINE, ())
    assert shown.svg is not None and "speed-up" not in shown.svg
    assert "speed-up" not in shown.caption

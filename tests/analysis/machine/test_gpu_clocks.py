"""Clocks and power of a GPU: two sides at different clocks are told apart, with both clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.machine.gpu_clocks import at_highest_clock, clock_warnings, clocks_of, power_cap
from specgate.contract.conditions import GpuReading
from tests.support.surroundings import BUSY_GPU, SAMPLES, conditions, disturbed, gpu

FREE = replace(BUSY_GPU, max_sm_clock_mhz=1980)
CAPPED = replace(FREE, clock_event_reasons=0x4, sm_clock_mhz=1845, power_mw=698_000)


def test_two_sides_at_one_clock_need_no_warning() -> None:
    assert clock_warnings([FREE] * 5, [FREE] * 3) == ()


def test_sides_at_different_clocks_are_named_with_both_and_with_the_cap() -> None:
    (clock_warning,) = clock_warnings([CAPPED] * 4, [FREE] * 4, names=("old", "new"))
    assert (
        "old ran at an SM clock of 1,845 MHz of at most 1,980 (at its power cap in 100% of the samples" in clock_warning
    )
    assert "698 W of 700 W), new at 1,980 MHz of at most 1,980: 6.8 % apart" in clock_warning


@given(st.integers(1000, 1980), st.integers(1000, 1980), st.floats(0.001, 0.2))
def test_a_warning_comes_exactly_where_the_means_lie_further_apart_than_stated(a: int, b: int, apart: float) -> None:
    one, other = ([replace(FREE, sm_clock_mhz=mhz)] * 2 for mhz in (a, b))
    assert bool(clock_warnings(one, other, apart=apart)) == (max(a, b) - min(a, b) > apart * max(a, b))
    assert bool(clock_warnings(one, other, apart=apart)) == bool(clock_warnings(other, one, apart=apart))


def test_what_else_may_explain_a_difference_is_named() -> None:
    lowered = replace(FREE, power_limit_mw=500_000)
    hot = replace(FREE, clock_event_reasons=0x20)
    other = replace(FREE, uuid="GPU-2")
    blind = replace(FREE, sm_clock_mhz=None)
    assert clock_warnings([FREE], [lowered]) == ("the power limit was 700 W for A and 500 W for B",)
    assert "A: never; B: sw_thermal_slowdown" in clock_warnings([FREE], [hot])[0]
    assert f"A ran on {FREE.uuid}, B on GPU-2" in clock_warnings([FREE], [other])
    assert "the SM clock of B is not known" in clock_warnings([FREE], [blind])[0]


def test_without_readings_there_is_nothing_to_hold_beside_each_other() -> None:
    assert clock_warnings([], []) == ()
    assert clocks_of([]).sm_mhz is None
    silent = GpuReading("GPU-1", unread={"sm_clock_mhz": "Not Supported"})
    assert clock_warnings([silent], [silent]) == ()


def test_only_samples_within_blocks_tell_of_the_cap() -> None:
    outside = disturbed(lambda s: gpu(s, clock_event_reasons=0x4), slice(0, 1))
    assert outside[0].monotonic_ns < SAMPLES[1].monotonic_ns
    samples = [gpu(s, max_sm_clock_mhz=1980) for s in outside]
    assert conditions(samples).gpu.capped == 0.0
    assert power_cap(conditions(samples).gpu) is None


def test_samples_stored_before_the_highest_clock_was_read_say_nothing_of_the_cap() -> None:
    watch = conditions(disturbed(lambda s: gpu(s, clock_event_reasons=0x4), slice(None))).gpu
    assert (watch.max_sm_clock_mhz, watch.power_w, watch.capped) == (None, None, None)
    assert power_cap(watch) is None


def test_a_time_at_the_highest_clock_is_shorter_by_the_ratio_of_the_clocks() -> None:
    assert at_highest_clock(2.0, 990, 1980) == pytest.approx(1.0)
    assert at_highest_clock(2.0, 1980, 1980) == 2.0

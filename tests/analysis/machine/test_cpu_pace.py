"""Uneven CPUs are told from what the same work took in the samples of a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.machine.cpu_pace import LEAST_READINGS, pace_of, uneven
from specgate.contract.conditions import CpuPace, Sample
from tests.support.surroundings import BLOCKS, SAMPLES, SECOND, conditions, working

NS = st.integers(1_000, 10**7)


def samples(taken: Sequence[int | None]) -> list[Sample]:
    return [working(SAMPLES[0], ns) for ns in taken]


def test_evenly_fast_cpus_are_nothing_to_tell_of() -> None:
    pace = pace_of(samples([20_000 + 50 * i for i in range(100)]))
    assert pace is not None and (pace.readings, pace.fastest_ns, pace.slow) == (100, 20_500, 0)
    assert uneven(pace) is None


def test_cores_that_are_shared_half_of_the_time_are_told_with_their_figures() -> None:
    pace = pace_of(samples([20_000] * 100 + [40_000] * 100))
    assert pace == CpuPace(200, 20_000, 100, 2.0)
    text = uneven(pace) or ""
    assert "in 100 of 200 samples" in text and "2.00 times in the slowest twentieth" in text


def test_slow_is_a_quarter_longer_than_the_fastest_tenth_or_more() -> None:
    pace = pace_of(samples([20_000] * 50 + [24_999] * 30 + [25_000] * 20))
    assert pace is not None and (pace.slow, pace.slow_share) == (20, 0.2)


def test_cpus_that_are_nearly_always_slow_look_even() -> None:
    """The doctor, or another day, has to tell; the docs say so."""
    assert uneven(pace_of(samples([20_000] * 9 + [40_000] * 91))) is None


@pytest.mark.parametrize(("slow", "expected"), [(5, False), (6, True)])
def test_a_few_slow_readings_in_a_hundred_are_not_told(slow: int, expected: bool) -> None:
    pace = pace_of(samples([40_000] * slow + [20_000] * (100 - slow)))
    assert (uneven(pace) is not None) == expected


def test_few_readings_and_runs_of_before_tell_nothing() -> None:
    assert pace_of(samples([20_000] * (LEAST_READINGS - 1) + [None] * 50)) is None
    assert pace_of(samples([20_000] * LEAST_READINGS + [None] * 50)) is not None
    assert pace_of([]) is None and uneven(None) is None
    edited = [0, -5] * LEAST_READINGS
    assert pace_of(samples(edited)) is None
    assert pace_of(samples([20_000] * LEAST_READINGS + edited)) == pace_of(samples([20_000] * LEAST_READINGS))
    assert conditions(SAMPLES).cpu_pace is None


@given(st.lists(NS, min_size=LEAST_READINGS, max_size=60), st.randoms(use_true_random=False), st.integers(2, 9))
def test_the_figures_are_those_of_counting_and_depend_on_neither_order_nor_the_cpus_speed(
    taken: list[int], random: Random, factor: int
) -> None:
    pace = pace_of(samples(taken))
    assert pace is not None
    assert pace.slow == sum(4 * ns >= 5 * pace.fastest_ns for ns in taken)
    # by counting: a tenth is at most as slow as `fastest_ns`, and a twentieth at least as slow as `slowest` says
    assert sum(ns <= pace.fastest_ns for ns in taken) >= len(taken) / 10
    assert sum(ns < pace.fastest_ns for ns in taken) <= len(taken) / 10
    assert sum(ns >= pace.slowest * pace.fastest_ns - 1e-3 for ns in taken) >= len(taken) / 20
    shuffled = list(taken)
    random.shuffle(shuffled)
    assert pace_of(samples(shuffled)) == pace
    slower = pace_of(samples([factor * ns for ns in taken]))
    assert slower is not None and slower.slowest == pytest.approx(pace.slowest) and slower.slow == pace.slow


def test_what_a_point_tells_is_of_its_own_samples() -> None:
    spans = [b.span_ns for b in BLOCKS if not b.warmup and b.span_ns is not None]
    own = range(spans[0][0] - SECOND // 2, spans[-1][1] + SECOND // 2 + 1)
    assert any(s.monotonic_ns not in own for s in SAMPLES)
    even = conditions([working(s, 20_000) for s in SAMPLES])
    assert even.cpu_pace is not None and even.cpu_pace.slow == 0
    assert conditions([working(s, 20_000 if s.monotonic_ns in own else 90_000) for s in SAMPLES]) == even
    half = conditions([working(s, 20_000 * (1 + i % 2)) for i, s in enumerate(SAMPLES)])
    assert half.cpu_pace is not None and half.cpu_pace.slow_share == pytest.approx(0.5, abs=0.02)
    timeline = replace(half.timeline, slow_cpu_share=even.timeline.slow_cpu_share)
    assert replace(half, cpu_pace=even.cpu_pace, timeline=timeline) == even

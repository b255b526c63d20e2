"""Roles' SM clocks are compared at the same times of decoding, and told apart only where the samples can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specgate.analysis.machine.clock_comparison import ClockShift, clock_shifts, common_s, untold_parts
from specgate.analysis.machine.conditions import conditions_of
from specgate.contract import Block
from specgate.contract.conditions import ClockComparison, ClockReading, RoleClock, Sample, clock_readings
from tests.support.machine.heated import HIGHEST_MHZ, LENGTHS, Clock, heated
from tests.support.surroundings import SECOND, sample

LIMIT = 0.05


def held(
    clock: Clock, lengths: Mapping[str, float] = LENGTHS, scales: Mapping[str, float] | None = None, seed: int = 0
) -> ClockComparison:
    """Compare the clocks of 32 blocks of each role."""
    plan, blocks, samples = heated(clock, lengths, scales=scales, seed=seed)
    (machine,) = conditions_of(plan, blocks, samples).values()
    assert machine.gpu.common_clocks is not None
    return machine.gpu.common_clocks


def rising(low: float, until_s: float) -> Clock:
    return lambda at_s: low if at_s < until_s else HIGHEST_MHZ


lows, rises, seconds = st.floats(1400, HIGHEST_MHZ), st.floats(0, 3), st.floats(1, 4)
seeds = st.integers(0, 2**32)
slower_roles = st.sampled_from(["baseline", "spec-3"])


@settings(max_examples=20, derandomize=True)  # an interval errs once in a while
@given(lows, rises, seconds, seconds, seeds)
def test_roles_on_the_same_clock_curve_are_never_told_apart_however_long_they_decode(
    low: float, until_s: float, baseline: float, spec: float, seed: int
) -> None:
    comparison = held(rising(low, until_s), {"baseline": baseline, "spec-3": spec}, seed=seed)
    assert not any(shift.beyond(LIMIT) for shift in clock_shifts(comparison))


@settings(max_examples=20, derandomize=True)
@given(lows, rises, st.floats(1.5, 4), st.floats(1.5, 4), seeds, slower_roles)
def test_a_role_whose_clock_is_lower_by_8_percent_all_along_a_curve_is_told_apart(
    low: float, until_s: float, baseline: float, spec: float, seed: int, slower: str
) -> None:
    comparison = held(rising(low, until_s), {"baseline": baseline, "spec-3": spec}, {slower: 0.92}, seed)
    decoding, prefill = clock_shifts(comparison)
    assert decoding.beyond(LIMIT) and prefill.beyond(LIMIT)


@settings(max_examples=20)
@given(lows, st.floats(0.4, 4), st.floats(0.4, 4), seeds, slower_roles)
def test_a_role_whose_constant_clock_is_lower_by_8_percent_is_told_apart_in_short_blocks_too(
    mhz: float, baseline: float, spec: float, seed: int, slower: str
) -> None:
    comparison = held(lambda _: mhz, {"baseline": baseline, "spec-3": spec}, {slower: 0.92}, seed)
    assert clock_shifts(comparison)[0].beyond(LIMIT)


@settings(max_examples=40)
@given(st.floats(0.5, 3), st.integers(1000, 1980))
def test_a_constant_clock_is_its_own_mean_without_error(length: float, mhz: int) -> None:
    """Of 32 blocks: with fewer, blocks as short as the time between two samples can have none in common."""
    for clock in held(lambda _: mhz, {"baseline": 2.0, "spec-3": length}).decoding.values():
        assert clock.mhz == pytest.approx(mhz)
        assert clock.standard_error_mhz is None or clock.standard_error_mhz < 1e-6


def test_what_comes_after_the_shorter_role_has_ended_changes_nothing_that_is_compared() -> None:
    a, b = held(lambda at_s: 1_500 if at_s < 2.2 else 1_980), held(lambda at_s: 1_500 if at_s < 2.2 else 1_300)
    assert a.decoding == b.decoding
    assert common_s(a.decoding) == pytest.approx(LENGTHS["spec-3"] - 0.1)  # less asking and answering, 0.1 s


# ── the figures, by other means ──────────────────────────────────────────────────────────────────────────────────────


def blocks_at(readings: Mapping[str, Sequence[Sequence[tuple[float, int]]]]) -> tuple[list[Block], list[Sample]]:
    """Blocks that decode for one second. `readings`: role → block → (seconds since decoding began, MHz)."""
    _, made, _ = heated(prompt_sets=16)
    blocks: list[Block] = []
    samples = [sample(0)]
    for role, of in readings.items():
        mine = [b for b in made if b.role.name == role and not b.warmup]
        assert len(of) <= len(mine)
        for block, seen in zip(mine, of, strict=False):
            begin = (2 + 2 * len(blocks)) * SECOND
            blocks.append(replace(block, prefill_ns=0, elapsed_ns=SECOND, span_ns=(begin, begin + SECOND)))
            samples += [sample(begin + round(at * SECOND), sm_clock_mhz=mhz) for at, mhz in seen]
    return blocks, [*samples, sample((2 + 2 * len(blocks)) * SECOND)]


def compared(readings: Mapping[str, Sequence[Sequence[tuple[float, int]]]]) -> ClockComparison:
    plan, _, _ = heated(prompt_sets=16)
    (machine,) = conditions_of(plan, *blocks_at(readings)).values()
    assert machine.gpu.common_clocks is not None
    return machine.gpu.common_clocks


def test_samples_at_one_time_are_compared_as_by_welch() -> None:
    a, b = [1500, 1515, 1530, 1500, 1560], [1410, 1395, 1425, 1440, 1395, 1410]
    comparison = compared({"baseline": [[(0.1, mhz)] for mhz in a], "spec-3": [[(0.1, mhz)] for mhz in b]})
    shift, _ = clock_shifts(comparison)
    by_welch = stats.ttest_ind(a, b, equal_var=False)
    low, high = by_welch.confidence_interval(2 * 0.99865 - 1)
    mean = sum(a) / 5
    assert shift.shift == pytest.approx((mean - sum(b) / 6) / mean)
    assert shift.margin == pytest.approx((high - low) / 2 / mean)
    assert shift.beyond(LIMIT)


def between(samples: Sequence[Sample]) -> list[Sample]:
    """The same readings, every second one as a clock that was read between two whole samples."""
    made: list[Sample] = []
    waiting: tuple[ClockReading, ...] = ()
    for number, whole in enumerate(samples):
        if number % 2 and number + 1 < len(samples):
            waiting += clock_readings(whole)
        else:
            made.append(replace(whole, clocks=waiting))
            waiting = ()
    return made


@settings(max_examples=10, derandomize=True)
@given(lows, rises, seconds, seconds, seeds)
def test_a_clock_that_was_read_between_samples_counts_like_one_that_was_read_with_a_sample(
    low: float, until_s: float, baseline: float, spec: float, seed: int
) -> None:
    plan, blocks, samples = heated(rising(low, until_s), {"baseline": baseline, "spec-3": spec}, seed=seed)
    assert len(between(samples)) < 0.6 * len(samples)
    (whole,) = conditions_of(plan, blocks, samples).values()
    (apart,) = conditions_of(plan, blocks, between(samples)).values()
    assert apart.gpu.common_clocks == whole.gpu.common_clocks
    assert apart.gpu.sm_clock_mhz == pytest.approx(whole.gpu.sm_clock_mhz)
    assert apart.gpu.prefill_clock_mhz == pytest.approx(whole.gpu.prefill_clock_mhz)


def test_stretches_count_alike_for_all_roles_whatever_samples_they_have_of_each() -> None:
    """One role was mostly sampled early and the other late. At equal times they agree, and their plain means do not."""
    early, late = [(0.1, 1500)], [(0.9, 1980)]
    comparison = compared({"baseline": 10 * [early] + 4 * [late], "spec-3": 4 * [early] + 10 * [late]})
    assert [clock.mhz for clock in comparison.decoding.values()] == [1740, 1740]
    assert [clock.samples for clock in comparison.decoding.values()] == [14, 14]


def test_a_block_counts_once_however_often_it_was_sampled() -> None:
    clocks = [1500, 1560, 1620, 1530, 1590, 1500, 1560, 1620]
    once, twice = (
        compared({role: [[(0.1 + i / 1000, mhz) for i in range(n)] for mhz in clocks] for role in LENGTHS})
        for n in (1, 2)
    )
    errors = [of.decoding["baseline"].standard_error_mhz for of in (once, twice)]
    assert errors[0] is not None and errors[1] is not None
    assert errors[0] == pytest.approx(stats.sem(clocks))
    assert errors[1] == pytest.approx(errors[0], rel=0.05)  # as independent samples, it would be smaller by a third
    assert once.decoding["baseline"].blocks == twice.decoding["baseline"].blocks == 8


@pytest.mark.parametrize(
    ("baseline", "spec"),
    [(1, 1), (2, 3), (3, 8), (0, 8), (0, 0)],
    ids=["one each", "two and three", "three of one role", "none of one role", "none at all"],
)
def test_a_handful_of_samples_tells_nothing_even_if_they_agree_among_themselves(baseline: int, spec: int) -> None:
    comparison = compared({"baseline": [[(0.1, 1980)]] * baseline or [[]], "spec-3": [[(0.1, 1500)]] * spec or [[]]})
    assert not any(shift.beyond(LIMIT) for shift in clock_shifts(comparison))
    assert untold_parts(comparison, LIMIT) == ["decoding", "prefill"]


def test_samples_at_different_times_of_decoding_are_not_compared() -> None:
    comparison = compared({"baseline": [[(0.1, 1500)]] * 8, "spec-3": [[(0.6, 1980)]] * 8})
    assert [clock.mhz for clock in comparison.decoding.values()] == [None, None]
    assert untold_parts(comparison, LIMIT) == ["decoding", "prefill"]


@pytest.mark.parametrize(
    ("shift", "margin", "beyond", "expected"),
    [
        (0.08, 0.02, True, True),
        (0.03, 0.02, False, True),
        (0.08, 0.07, True, True),
        (0.08, 0.09, False, False),
        (0.0, 0.09, False, False),
        (0.3, None, False, False),
        (None, None, False, False),
    ],
)
def test_a_shift_counts_beyond_the_limit_and_beyond_its_margin(
    shift: float | None, margin: float | None, beyond: bool, expected: bool
) -> None:
    clock_shift = ClockShift("decoding", shift, margin)
    assert (clock_shift.beyond(LIMIT), clock_shift.told(LIMIT)) == (beyond, expected)


def test_every_two_roles_are_compared() -> None:
    clocks = {f"spec-{k}": RoleClock(mhz, 1.0, 30, 31, 60, 2.0) for k, mhz in ((1, 1980.0), (3, 1960.0), (5, 1800.0))}
    shifts = clock_shifts(ClockComparison(clocks))
    assert [s.shift for s in shifts] == pytest.approx([1 - 1960 / 1980, 1 - 1800 / 1980, 1 - 1800 / 1960])
    assert all(s.margin is not None and math.isclose(s.margin, 3.12 * math.sqrt(2) / 1980, rel_tol=0.1) for s in shifts)

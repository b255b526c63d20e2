"""Overlap ↔ distinct experts, against routers that throw dice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.experts import independence_of, mean_touched, needed_overlap, overlap_of, passes_with
from specgate.contract.traffic import ExpertTraffic

GPT_OSS = ExpertTraffic(layers=36, count=128, active=4, expert_bytes=13_219_200)
ROUTED = st.builds(
    lambda count, active: ExpertTraffic(2, count, min(active, count - 1), 10), st.integers(4, 64), st.integers(1, 4)
)
OVERLAPS = st.floats(0, 1)
PASSES = st.dictionaries(
    st.lists(st.integers(1, 8), min_size=1, max_size=4).map(lambda rows: tuple(sorted(rows, reverse=True))),
    st.integers(1, 9),
    min_size=1,
    max_size=4,
)


def touched_by_dice(experts: ExpertTraffic, overlap: float, slots: int, tokens: int, trials: int) -> np.ndarray:
    """Distinct experts of one layer per trial. The tokens of a slot all choose as its first one does with the chance
    `overlap`, and otherwise each for itself.
    """
    dice = np.random.default_rng(7)
    counts = np.zeros(trials)
    for trial in range(trials):
        of_all: set[int] = set()
        for _ in range(slots):
            choices = 1 if dice.random() < overlap else tokens
            for _ in range(choices):
                of_all |= set(dice.choice(experts.count, experts.active, replace=False).tolist())
        counts[trial] = len(of_all)
    return counts


@pytest.mark.parametrize(("overlap", "slots", "tokens"), [(0.0, 1, 4), (0.5, 1, 4), (0.5, 3, 4), (1.0, 2, 3)])
def test_distinct_experts_are_those_of_tokens_that_choose_alike_so_often(
    overlap: float, slots: int, tokens: int
) -> None:
    touched = touched_by_dice(GPT_OSS, overlap, slots, tokens, 500)
    error = touched.std() / np.sqrt(len(touched))
    assert abs(GPT_OSS.distinct_of_slots([tokens] * slots, overlap) - touched.mean()) <= 4 * error + 1e-9


@given(ROUTED, st.integers(1, 8), OVERLAPS)
def test_tokens_touch_between_what_one_does_and_what_independent_ones_do(
    experts: ExpertTraffic, tokens: int, overlap: float
) -> None:
    touched = experts.distinct(tokens, overlap)
    assert experts.active - 1e-9 <= touched <= experts.distinct(tokens) + 1e-9
    assert experts.distinct(tokens) == pytest.approx(
        experts.count * (1 - (1 - experts.active / experts.count) ** tokens)
    )
    assert experts.distinct(tokens, 1.0) == pytest.approx(experts.active)
    assert experts.distinct(0, overlap) == 0.0


@given(ROUTED, st.integers(2, 8), OVERLAPS)
def test_the_overlap_of_what_is_touched_is_the_overlap_that_touches_it(
    experts: ExpertTraffic, tokens: int, overlap: float
) -> None:
    assert overlap_of(experts, tokens, experts.distinct(tokens, overlap)) == pytest.approx(overlap, abs=1e-6)


def test_where_nothing_can_be_shared_there_is_no_overlap() -> None:
    assert overlap_of(GPT_OSS, 1, 4.0) is None
    assert overlap_of(ExpertTraffic(2, 4, 4, 10), 3, 4.0) is None
    assert (overlap_of(GPT_OSS, 4, 16.0) or 0) < 0  # they avoid each other's


@settings(max_examples=30)
@given(ROUTED, PASSES, OVERLAPS)
def test_the_needed_overlap_is_the_least_at_which_passes_touch_no_more(
    experts: ExpertTraffic, rows: dict[tuple[int, ...], int], overlap: float
) -> None:
    touched = mean_touched(experts, rows, overlap)
    needed = needed_overlap(experts, rows, touched)
    assert needed is not None and needed <= overlap + 1e-6
    assert mean_touched(experts, rows, needed) <= touched * (1 + 1e-9)
    if needed > 1e-6:
        assert mean_touched(experts, rows, needed - 1e-6) >= touched * (1 - 1e-9)
    assert needed_overlap(experts, rows, mean_touched(experts, rows, 0.0) + 1) == 0.0
    assert needed_overlap(experts, rows, mean_touched(experts, rows, 1.0) * (1 - 1e-6)) is None


@settings(max_examples=30)
@given(ROUTED, st.lists(st.integers(1, 5), min_size=2, max_size=4), OVERLAPS, st.floats(0.3, 1))
def test_slots_that_share_count_as_fewer_independent_ones(
    experts: ExpertTraffic, rows: list[int], overlap: float, independence: float
) -> None:
    passes = passes_with([tuple(rows)] * 3)
    touched = mean_touched(experts, passes, overlap, independence)
    again = independence_of(experts, passes, overlap, touched)
    assert mean_touched(experts, passes, overlap, again) == pytest.approx(touched, abs=1e-6)


def test_a_slot_alone_is_independent_whatever_it_touches() -> None:
    assert independence_of(GPT_OSS, {(4,): 7}, 0.5, 4.0) == 1.0


def test_passes_are_alike_whichever_slot_has_which_rows() -> None:
    assert passes_with([(1, 4), (4, 1), (), (4,)]) == {(4, 1): 2, (4,): 1}

"""Steps are sorted by how far their requests had come."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.context_depth import BINS, by_depth, step_depths
from specgate.contract import Block
from tests.support.factories import block, blocks_of, plan_of, scenario

PLAN = plan_of(scenario(batch=(2,)))
SPEC = PLAN.scenarios["demo-64"].roles[1]
BLOCKS = [b for b in blocks_of(PLAN) if b.role == SPEC and not b.warmup]


def walked(made: Block, slot: int) -> list[int]:
    """Tokens beyond the prompt before each step, by walking the slot's tokens."""
    before, values = 1, []
    for row in made.accepted:
        values.append(before)
        before += row[slot] + 1
    assert before == len(made.tokens[slot])
    return values


@pytest.mark.parametrize("made", BLOCKS[:3])
def test_the_depth_of_a_step_is_the_mean_over_its_slots(made: Block) -> None:
    expected = [statistics.fmean(pair) for pair in zip(walked(made, 0), walked(made, 1), strict=True)]
    assert [depth for _, depth in step_depths(made)] == expected


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_no_step_and_no_token_is_lost_among_the_bins(accept: list[int]) -> None:
    blocks = [b for b in blocks_of(PLAN, accept=accept) if b.role == SPEC and not b.warmup]
    bins = by_depth(blocks, withhold=False)
    assert len(bins) <= BINS
    assert sum(b.steps for b in bins) == sum(len(b.step_ns) for b in blocks)
    emitted = sum((b.acceptance_length or 0) * b.drafted_steps for b in bins)
    assert emitted == pytest.approx(sum(b.emitted for b in blocks))
    assert [b.depth for b in bins] == sorted(b.depth for b in bins)


def test_a_length_that_falls_with_depth_is_seen_to_fall() -> None:
    round_ = next(r for r in PLAN.rounds if not r.warmup)
    made = block(round_, SPEC, steps=40, accept=[3] * 20 + [0] * 22)
    lengths = [b.acceptance_length for b in by_depth([made], withhold=False)]
    assert lengths[0] == 4 and lengths[-1] == 1


def test_times_of_wrong_tokens_are_withheld_and_lengths_are_not() -> None:
    result = by_depth(BLOCKS, withhold=True)
    assert all(b.step_ms is None and b.acceptance_length is not None for b in result)
    shown = by_depth(BLOCKS, withhold=False)
    steps = [ns / 1e6 for b in BLOCKS for ns in b.step_ns]
    assert all(min(steps) <= (b.step_ms or 0) <= max(steps) for b in shown)


def test_a_baseline_has_times_and_no_length() -> None:
    base = [b for b in blocks_of(PLAN) if not b.role.speculative and not b.warmup]
    result = by_depth(base, withhold=False)
    assert all(b.acceptance_length is None and b.drafted_steps == 0 and b.step_ms for b in result)

"""Steps are sorted by how many slots still decode in them."""

from __future__ import annotations

import statistics
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.context_depth import by_active
from specgate.contract import Block
from tests.support.factories import blocks_of, plan_of, scenario

PLAN = plan_of(scenario(batch=(3,)))
BLOCKS = [b for b in blocks_of(PLAN) if b.role.speculative and not b.warmup]


def ending(block: Block, ends: tuple[int, ...], step_ns: tuple[int, ...]) -> Block:
    """`block` with slots that end after so many steps; steps last as long as told."""
    rows = tuple(tuple(1 if step < end else -1 for end in ends) for step in range(len(step_ns)))
    return replace(block, accepted=rows, step_ns=step_ns)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=3))
def test_every_step_with_an_active_slot_is_counted_once(ends: list[tuple[int, int, int]]) -> None:
    blocks = [ending(BLOCKS[0], of, (1_000_000,) * 9) for of in ends]
    result = by_active(blocks, withhold=False)
    assert {b.active: b.steps for b in result} == {
        n: steps for n in (1, 2, 3) if (steps := sum(sum(s < end for end in of) == n for of in ends for s in range(9)))
    }
    assert [b.active for b in result] == sorted(b.active for b in result)


def test_the_time_of_so_many_slots_is_the_median_over_their_steps() -> None:
    blocks = [ending(BLOCKS[0], (2, 4, 5), (9, 8, 5, 6, 2)), ending(BLOCKS[1], (1, 3, 3), (7, 4, 4))]
    blocks = [replace(b, step_ns=tuple(ns * 1_000_000 for ns in b.step_ns)) for b in blocks]
    data = {b.active: (b.steps, b.step_ms) for b in by_active(blocks, withhold=False)}
    assert data == {1: (1, 2.0), 2: (4, statistics.median([5, 6, 4, 4])), 3: (3, 8.0)}


def test_times_of_wrong_tokens_and_of_rounds_set_aside_are_left_out_and_steps_are_not() -> None:
    one = ending(BLOCKS[0], (1, 2, 2), (3_000_000, 2_000_000))
    aside = frozenset({(one.prompt_set, one.round)})
    for values in (by_active([one], withhold=True), by_active([one], withhold=False, aside=aside)):
        assert [(b.active, b.steps, b.step_ms) for b in values] == [(2, 1, None), (3, 1, None)]


def test_an_engine_that_shows_no_steps_has_no_bins() -> None:
    assert by_active([replace(BLOCKS[0], accepted=(), step_ns=())], withhold=False) == ()

"""Memory traffic of passes, against counting it out: sets of positions, and routers that throw dice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.traffic import (
    AttentionTraffic,
    Bytes,
    DraftTraffic,
    ExpertTraffic,
    PassTraffic,
    Slot,
    attended_positions,
    draft_bytes,
    pass_bytes,
)

WINDOWS = st.none() | st.integers(1, 40)
SLOTS = st.lists(st.builds(Slot, st.integers(0, 60), st.integers(1, 8)), min_size=1, max_size=4)


def cached_positions_seen(slot: Slot, query_rows: int, window: int | None) -> int:
    """Every row looks back from its own position; what was cached before the pass is counted once."""
    rows = range(slot.cached + slot.rows - query_rows, slot.cached + slot.rows)
    result = {p for row in rows for p in range(row + 1) if window is None or p > row - window}
    return len(result & set(range(slot.cached)))


@given(st.integers(0, 60), st.integers(1, 8), st.data(), WINDOWS)
def test_positions_seen_are_those_of_all_query_rows_together(
    cached: int, rows: int, data: st.DataObject, window: int | None
) -> None:
    query_rows = data.draw(st.integers(1, rows))
    slot = Slot(cached, rows)
    assert attended_positions(slot, query_rows, window) == cached_positions_seen(slot, query_rows, window)


@given(SLOTS, WINDOWS)
def test_a_pass_reads_weights_once_and_writes_every_row(slots: list[Slot], window: int | None) -> None:
    layers = (AttentionTraffic(3, 16, window), AttentionTraffic(2, 16))
    moved = pass_bytes(PassTraffic(1000, 7, layers), slots)
    rows = sum(slot.rows for slot in slots)
    assert moved.weights == 1000 + 7 * rows
    assert moved.kv_written == 5 * 16 * rows
    limited = sum(cached_positions_seen(slot, slot.rows, window) for slot in slots)
    assert moved.kv_read == 3 * 16 * limited + 2 * 16 * sum(slot.cached for slot in slots)


def test_a_pass_over_no_slot_moves_nothing() -> None:
    assert pass_bytes(PassTraffic(1000, 7, ()), []) == Bytes()


@given(SLOTS, WINDOWS, st.data())
def test_a_chain_of_drafts_is_an_extension_and_steps_of_one_row(
    slots: list[Slot], window: int | None, data: st.DataObject
) -> None:
    drafts = [data.draw(st.integers(1, 5)) for _ in slots]
    cache = (AttentionTraffic(1, 10, window),)
    moved = draft_bytes(DraftTraffic(PassTraffic(500, 1, cache), PassTraffic(300, 1, cache)), slots, drafts)
    read, written, steps = 0, 0, set[int]()
    for slot, k in zip(slots, drafts, strict=True):
        read += cached_positions_seen(slot, 1, window)
        written += slot.rows
        for own in range(1, k):
            newest = slot.cached + slot.rows + own - 1
            read += cached_positions_seen(Slot(newest, 1), 1, window)
            written += 1
            steps.add(own)
    assert (moved.kv_read, moved.kv_written) == (10 * read, 10 * written)
    assert moved.weights == 500 + 300 * len(steps) + written


@pytest.mark.parametrize(("count", "active", "tokens"), [(128, 4, 1), (128, 4, 4), (128, 4, 16), (8, 2, 5), (4, 4, 3)])
def test_distinct_experts_are_those_of_a_router_that_throws_dice(count: int, active: int, tokens: int) -> None:
    dice = np.random.default_rng(count + tokens)
    trials = 20_000
    # The `active` largest of `count` random scores: a fair choice without repetition, for every token on its own.
    chosen = dice.random((trials, tokens, count)).argpartition(count - active, axis=2)[..., count - active :]
    hit = np.zeros((trials, count), dtype=bool)
    np.put_along_axis(hit, chosen.reshape(trials, -1), True, axis=1)
    distinct = hit.sum(axis=1)
    error = distinct.std() / np.sqrt(trials)
    assert abs(ExpertTraffic(1, count, active, 1).distinct(tokens) - distinct.mean()) <= 4 * error + 1e-9


def test_experts_are_read_once_per_layer_however_many_tokens_reach_them() -> None:
    experts = ExpertTraffic(layers=36, count=128, active=4, expert_bytes=1000)
    one = pass_bytes(PassTraffic(0, 0, (), experts), [Slot(10, 1)])
    assert one.weights == pytest.approx(36 * 4 * 1000)
    four = pass_bytes(PassTraffic(0, 0, (), experts), [Slot(10, 2), Slot(10, 2)])
    assert one.weights < four.weights < 4 * one.weights
    vast = pass_bytes(PassTraffic(0, 0, (), experts), [Slot(10, 10_000)])
    assert vast.weights == pytest.approx(36 * 128 * 1000)

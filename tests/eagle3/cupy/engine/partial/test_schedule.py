"""Which steps verify in part: decided before a run, and never later than the reference engine would verify in full."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.engine.decode_run import AHEAD, STEPS_PER_GRAPH, enqueue, graph_sizes
from specgate.backends.eagle3.cupy.engine.partial import counters_of, graphs_of, kinds_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN
from specgate.backends.eagle3.lib.specpv import BLOCK, PartialPlan

PLAN = PartialPlan(2, 4, 3, 20)
LONG = (2 + 4 + 3 + 1) * BLOCK


def sizes(plan: PartialPlan | None = PLAN, rows: int = 6) -> Sizes:
    return Sizes(2, 4096, rows, partial=plan)


@pytest.mark.parametrize(("k", "most"), [(1, 10), (3, 5), (4, 4), (5, 4)])
def test_the_next_verification_is_full_where_so_many_tokens_may_have_come_as_refresh_says(k: int, most: int) -> None:
    kinds = kinds_of(sizes(), k, [500, LONG], 40)
    period = (FULL, *[PARTIAL] * most)
    assert kinds == (period * 40)[:40]
    assert (most - 1) * (k + 1) < 20 <= most * (k + 1)
    assert sizes().full_rows_of(k) == most * (k + 1) + k + 1


@given(st.integers(1, 7), st.integers(1, 60), st.integers(100, 400), st.integers(1, 60), st.integers(0, 9))
def test_no_more_tokens_than_there_are_rows_wait_for_a_full_verification_however_many_are_accepted(
    k: int, refresh: int, length: int, steps: int, seed: int
) -> None:
    """And a part is read only behind a full verification of a request that was long enough for it."""
    dice, plan = random.Random(seed), PartialPlan(2, 4, 3, refresh)
    of = sizes(plan, k + 1)
    at = verified = chosen = length
    kinds = kinds_of(of, k, [length, length + 100], steps)
    assert len(kinds) == steps and (PLAIN not in kinds or set(kinds) == {PLAIN})
    for kind in kinds if PLAIN not in kinds else ():
        gained = dice.randrange(k + 1) + 1
        assert at - verified + k + 1 <= of.full_rows_of(k) <= of.most_rows
        if kind == PARTIAL:
            assert plan.leaves_out(chosen) and at - verified < refresh
        else:
            verified, chosen = at + gained, at
        at += gained


def test_where_a_request_may_still_be_short_all_verify_in_full_and_where_it_stays_so_as_ever() -> None:
    assert kinds_of(sizes(), 3, [LONG - 2, 900], 6) == (FULL, FULL, FULL, PARTIAL, PARTIAL, PARTIAL)
    assert kinds_of(sizes(), 3, [LONG - 6, 900], 6) == (PLAIN,) * 6
    assert kinds_of(sizes(), 0, [900], 3) == kinds_of(sizes(None), 3, [900], 3) == (PLAIN,) * 3
    assert kinds_of(sizes(), 3, [900], 0) == ()


def test_without_a_part_the_graphs_of_a_run_are_what_they_were() -> None:
    for steps in (0, 1, 7, 8, 9, 31, 64):
        assert [len(graph) for graph in graphs_of((PLAIN,) * steps)] == graph_sizes(steps)


@pytest.mark.parametrize(
    ("refresh", "prompt"),
    [
        (32, 900),  # cycles of nine steps: graphs of eight and of one in turn
        (20, LONG - 30),  # single full verifications first
    ],
)
def test_the_host_looks_for_the_end_of_a_request_up_to_the_last_graph_of_several_steps(
    refresh: int, prompt: int
) -> None:
    graphs = graphs_of(kinds_of(sizes(PartialPlan(2, 4, 3, refresh), 4), 3, [prompt], 120))
    launched, looked = list[int](), list[int]()

    def running_after(number: int) -> int:
        looked.append(len(launched))
        return 1

    assert enqueue(graphs, lambda of, n: launched.append(len(of)), lambda n: None, running_after) == graphs
    last = max(number for number, steps in enumerate(launched) if steps > 1)
    assert looked == [*range(AHEAD, last + 1)] and launched.count(1) > 0 < last - 10


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_graph_has_whole_steps_in_their_order_and_few_graphs_are_captured(k: int) -> None:
    kinds = kinds_of(sizes(rows=8), k, [900], 61)
    graphs = graphs_of(kinds)
    assert tuple(kind for graph in graphs for kind in graph) == kinds
    assert all(FULL not in graph[1:] and len(graph) <= STEPS_PER_GRAPH for graph in graphs)
    assert len({*graphs}) <= 5


def test_counts_follow_from_what_was_accepted_by_each_kind_of_step() -> None:
    """Two requests; the second one ends in the third step."""
    plan, lengths = PartialPlan(1, 2, 1, 6), [100, 90]
    accepted = [(2, 0), (3, 1), (0, 2), (1, -1)]
    counted = counters_of(plan, (FULL, PARTIAL, PARTIAL, FULL), accepted, lengths, 4)
    left_out = [(100 // 16 - 1 - 1 - 2) * 16, (90 // 16 - 1 - 1 - 2) * 16]
    assert counted == {
        "specpv_partial_passes": 4,
        "specpv_full_passes": 3,
        "specpv_short_passes": 0,
        "specpv_partial_accepted": 6,
        "specpv_full_accepted": 3,
        "specpv_checked": 5,  # four and one, of the request that still runs
        "specpv_overruled": 4,
        "specpv_read_positions": 100 + 90 + 103 + 107 - 2 * left_out[0] + 91 + 93 - 2 * left_out[1] + 103,
        "specpv_cached_positions": 100 + 90 + 103 + 107 + 91 + 93 + 108,
    }


def test_steps_that_are_as_ever_count_as_full_and_short() -> None:
    counted = counters_of(PLAN, (PLAIN, PLAIN), [(1,), (0,)], [40], 0)
    assert (counted["specpv_full_passes"], counted["specpv_short_passes"], counted["specpv_checked"]) == (2, 2, 0)
    assert counted["specpv_read_positions"] == counted["specpv_cached_positions"] == 40 + 42

"""No rhythm of a machine may favour a side, whatever seed a scenario has."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.ab.schedule import ProcessPair, schedule_of
from specgate.contract import Role
from specgate.planning.plan import points_of
from tests.support.factories import scenario

seeds = st.integers(0, 2**31)
counts = st.integers(1, 3)


def schedule(seed: int, pairs: int, visits: int = 1, groups: int = 1) -> list[ProcessPair]:
    small_scenario = scenario(prompt_sets=8, spec=(1, 3))
    small_scenario = replace(small_scenario, workload=replace(small_scenario.workload, seed=seed))
    return schedule_of([(small_scenario, point) for point in points_of(small_scenario, "any")], pairs, visits, groups)


def gains(process_pairs: list[ProcessPair], period: int, phase: int, untimed: int = 2) -> dict[Role, int]:
    """Role → how many more slow blocks the new side has than the old one, where each `period`-th block is slow.

    Each visit begins with `untimed` blocks: one of either side on a GPU.
    """
    found_by_role, count = defaultdict[Role, int](int), 0
    for visit in (v for pair in process_pairs for v in pair.visits):
        count += untimed
        for group in visit.groups:
            for side in group.order:
                found_by_role[group.role] += (1 if side == "new" else -1) * (count % period == phase)
                count += 1
    return found_by_role


@given(seeds, st.integers(1, 3).map(lambda n: 4 * n), counts, counts, st.integers(0, 3), st.sampled_from((0, 2)))
def test_a_machine_that_slows_every_fourth_block_slows_both_sides_alike(
    seed: int, pairs: int, visits: int, groups: int, phase: int, untimed: int
) -> None:
    assert set(gains(schedule(seed, pairs, visits, groups), 4, phase, untimed).values()) == {0}


@given(seeds, st.integers(3, 14), st.integers(0, 3))
def test_with_any_number_of_process_pairs_two_slow_blocks_are_the_most_that_one_side_has_more(
    seed: int, pairs: int, phase: int
) -> None:
    assert all(abs(more) <= 2 for more in gains(schedule(seed, pairs), 4, phase).values())


@given(seeds, st.integers(3, 12), counts, counts)
def test_each_side_begins_in_half_of_the_process_pairs(seed: int, pairs: int, visits: int, groups: int) -> None:
    result = schedule(seed, pairs, visits, groups)
    for role in (q.role for q in result[0].visits[0].groups[:3]):
        firsts = [next(q.order[0] for q in pair.visits[0].groups if q.role == role) for pair in result]
        assert abs(firsts.count("old") - firsts.count("new")) == pairs % 2
    starting = [pair.first for pair in result]
    assert abs(starting.count("old") - starting.count("new")) == pairs % 2


@given(seeds, counts, counts)
def test_within_a_process_pair_the_groups_of_a_role_take_turns(seed: int, visits: int, groups: int) -> None:
    for pair in schedule(seed, 4, visits, groups):
        for role in {q.role for v in pair.visits for q in v.groups}:
            firsts = [q.order[0] for v in pair.visits for q in v.groups if q.role == role]
            assert all(a != b for a, b in pairwise(firsts))


@pytest.mark.parametrize("period", [5, 8, 16])
def test_other_rhythms_favour_no_side_in_the_mean_of_seeds(period: int) -> None:
    sums = [sum(gains(schedule(seed, 8), period, 0).values()) for seed in range(200)]
    assert abs(statistics.fmean(sums)) < 3 * statistics.stdev(sums) / math.sqrt(len(sums))

"""The order of a comparison: balanced, drawn once, and the same again."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.ab.folder import AbFolder
from specgate.ab.schedule import plan_of, schedule_of
from specgate.contract import Scenario
from specgate.errors import InvalidResult
from specgate.planning.plan import points_of
from specgate.planning.scenario import shipped as shipped_scenarios
from tests.fuzz import seeds


def scenario() -> Scenario:
    return next(s for s in shipped_scenarios() if s.name == "cpu-512-batch4")


@settings(max_examples=60, deadline=None)
@given(pairs=st.integers(1, 12), visits=st.integers(1, 5), groups=st.integers(1, 3), sets=st.integers(1, 9))
def test_every_group_balances_and_the_rounds_of_a_set_are_counted_on(
    pairs: int, visits: int, groups: int, sets: int
) -> None:
    one = scenario()
    one = replace(one, workload=replace(one.workload, prompt_sets=sets))
    points = [(one, point) for point in points_of(one, "fake")]
    schedule = schedule_of(points, pairs, visits, groups)
    assert schedule == schedule_of(points, pairs, visits, groups)
    for visit in (v for pair in schedule for v in pair.visits):
        for group in visit.groups:
            a, b, c, d = group.order
            assert a == d != b == c
    plan = plan_of([one], schedule, "fake")
    keys = [(r.point, r.prompt_set, r.index) for r in plan.rounds]
    assert len(keys) == len(set(keys)) == pairs * visits * groups * 2
    per_set = Counter(r.prompt_set for r in plan.rounds)
    assert max(per_set.values()) - min(per_set.values()) <= 2 * groups
    assert all({r.index for r in plan.rounds if r.prompt_set == s} == set(range(n)) for s, n in per_set.items())


def test_roles_that_are_loaded_one_at_a_time_have_their_groups_together_and_each_the_order_that_it_had() -> None:
    one = scenario()
    loaded = replace(one, schedule=replace(one.schedule, by_load=True))
    visits = [
        [v for pair in schedule_of([(of, p) for p in points_of(of, "fake")], 4, 2, 3) for v in pair.visits]
        for of in (one, loaded)
    ]
    for mixed, apart in zip(*visits, strict=True):
        assert [group.role for group in apart.groups] == [role for role in one.roles for _ in range(3)]
        assert [*apart.groups] == sorted(mixed.groups, key=lambda group: one.roles.index(group.role))


def test_the_sides_take_turns_in_being_started_first() -> None:
    one = scenario()
    schedule = schedule_of([(one, point) for point in points_of(one, "fake")], 8, 2, 1)
    assert Counter(pair.first for pair in schedule) == {"old": 4, "new": 4}
    assert Counter(visit.first for pair in schedule for visit in pair.visits) == {"old": 8, "new": 8}


def test_a_schedule_that_goes_on_visits_the_next_prompts_and_is_balanced_by_itself() -> None:
    one = scenario()
    points = [(one, point) for point in points_of(one, "fake")]
    first, later = schedule_of(points, 8, 1, 2), schedule_of(points, 4, 1, 2, 8)
    assert [pair.number for pair in later] == [8, 9, 10, 11]
    assert Counter(pair.first for pair in later) == {"old": 2, "new": 2}
    plan = plan_of([one], [*first, *later], "fake")
    keys = [(r.point, r.prompt_set, r.index) for r in plan.rounds]
    assert len(keys) == len(set(keys))
    whole = plan_of([one], schedule_of(points, 12, 1, 2), "fake")
    assert keys == [(r.point, r.prompt_set, r.index) for r in whole.rounds]


def test_another_seed_draws_another_order() -> None:
    one = scenario()
    other = replace(one, workload=replace(one.workload, seed=one.workload.seed + 1))
    orders = [
        [
            q.order
            for pair in schedule_of([(s, p) for p in points_of(s, "x")], 8, 2, 2)
            for v in pair.visits
            for q in v.groups
        ]
        for s in (one, other)
    ]
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"quads": 10**9}, "quads: must be at most"),
        ({"pairs": 10**9}, "pairs: must be at most"),
        ({"visits": 10**9}, "visits: must be at most"),
        ({"pairs": 10_000, "looks": [10_000], "visits": 100, "quads": 100}, "blocks: at most"),
        ({"looks": [10**9]}, "looks[0]: must be at most"),
        ({"looks": [3, 2]}, "looks: must ascend"),
        ({"looks": [2]}, "the last one is not pairs"),
        ({"looks": list(range(1, 70))}, "looks: "),
        ({"scenarios": {}}, "scenarios: there are none"),
        ({"sides": {}}, "sides: none"),
    ],
)
def test_a_stored_comparison_that_nobody_could_lay_out_is_refused_at_once(
    tmp_path: Path, edit: dict[str, object], message: str
) -> None:
    folder = AbFolder.open(seeds.a_comparison(tmp_path))
    file = folder.path / "asked.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **edit}))
    with pytest.raises(InvalidResult, match=re.escape(message)):
        folder.asked()

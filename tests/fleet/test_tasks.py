"""Division of a plan into tasks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import Plan
from specgate.fleet.tasks import ROUNDS_OF_TASKS, Task, only, parcelled
from tests.support.factories import plan_of, scenario


def plan(contexts: int, batches: int, scenarios: int) -> Plan:
    made = scenario(context=range(16, 16 + contexts), batch=range(1, 1 + batches))
    return plan_of(*(replace(made, name=f"s{n}") for n in range(scenarios)))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))
def test_every_point_is_in_one_task_whole_and_in_order(contexts: int, batches: int, scenarios: int, slots: int) -> None:
    made = plan(contexts, batches, scenarios)
    tasks = parcelled(made.points, slots)
    assert [point for task in tasks for point in task] == [point.key for point in made.points]
    most = -(-len(made.points) // (slots * ROUNDS_OF_TASKS))
    assert all(1 <= len(task) <= most for task in tasks)
    assert all(len({point.partition("/")[0] for point in task}) == 1 for task in tasks)
    for task in tasks:
        alone = only(made, task)
        assert [point.key for point in alone.points] == list(task)
        assert {round_.order for round_ in alone.rounds} == {round_.order for round_ in made.rounds}


def test_tasks_have_engine_processes_of_their_own() -> None:
    one, other = Task(("a/fake/c8/b1",), 0), Task(("a/fake/c8/b1",), 1000)
    assert not {*one.generations} & {*other.generations}
    assert Task(("a", "b", "c"), 0).name == "a and 2 more"

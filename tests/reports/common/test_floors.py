from __future__ import annotations

import pytest

from specgate.contract import Cell, Policy, Role, Rule
from specgate.reports.common.figures import floor_of
from tests.support.factories import blocks_of, judged, plan_of, run_of, scenario

PLAN = plan_of(scenario())
(POINT, *_) = PLAN.points
SPEC = Cell(POINT, Role(3))


def policy(*mins: tuple[float, bool]) -> Policy:
    rules = tuple(
        Rule(f"speed-{n}", "speed", required, role="spec-*", params={"min": least})
        for n, (least, required) in enumerate(mins)
    )
    return Policy("own", (*rules, Rule("acceptance", "acceptance", True, params={"min": 9.0})))


@pytest.mark.parametrize(
    ("mins", "least"),
    [
        ([(1.25, True), (2.0, False)], 1.25),
        ([(1.0, True), (1.25, True), (2.0, False)], 1.25),
        ([(1.5, False), (2.0, False)], 2.0),
        ([], None),
    ],
    ids=["what is required", "the highest", "advice alone", "nothing"],
)
def test_what_a_policy_asks_of_a_speed_up_is_what_it_requires(
    mins: list[tuple[float, bool]], least: float | None
) -> None:
    run = judged(run_of(PLAN, blocks_of(PLAN)), policy(*mins))
    assert floor_of(run, SPEC) == least

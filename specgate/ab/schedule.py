"""The order of a comparison, drawn from a seed before anything is measured.

Processes come in pairs, one of each side. Within a pair, both sides visit the same prompt sets; on a visit, each role
has quads of blocks A B B A or B A A B, A for the old build. Which of the two, is drawn for each quad, so that no
rhythm of the machine can favour a side. Over the pairs, the visits go through all prompt sets in turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specgate.core import Plan, Point, Role, Round, Scenario
from specgate.core.two_builds import SIDES, SideName

ROUNDS_PER_QUAD: Final = 2
"""Blocks of each side and role in a quad: a quad gives each side two rounds."""


@dataclass(frozen=True, slots=True)
class Quad:
    """Four blocks of one role: the side of each, in running order."""

    role: Role
    order: tuple[SideName, SideName, SideName, SideName]


@dataclass(frozen=True, slots=True)
class Visit:
    """What happens to one prompt set while one pair of processes runs.

    `first`: the side that prefills first. `rounds`: the number of the first of its rounds; a quad takes two.
    `quads`: in running order; the roles take turns.
    """

    point: Point
    prompt_set: int
    first: SideName
    rounds: int
    quads: tuple[Quad, ...]


@dataclass(frozen=True, slots=True)
class ProcessPair:
    """One process of each side. `first`: the side whose process is started first."""

    number: int
    first: SideName
    visits: tuple[Visit, ...]


def schedule_of(points: Sequence[tuple[Scenario, Point]], pairs: int, visits: int, quads: int) -> list[ProcessPair]:
    """The whole schedule: `pairs` pairs of processes, `visits` prompt sets of every point in each, `quads` quads of
    every role on each visit.

    The seed is that of the first scenario. Sides take turns in being the first, from a drawn beginning.
    """
    source = random.Random(f"ab {points[0][0].workload.seed} {pairs} {visits} {quads}")
    found = []
    for number in range(pairs):
        if number % 2 == 0:
            leading = source.choice(SIDES)
        first = leading if number % 2 == 0 else other(leading)
        planned = [
            visit_of(scenario, point, number, place, visits, quads, first, source)
            for scenario, point in points
            for place in range(visits)
        ]
        found.append(ProcessPair(number, first, tuple(planned)))
    return found


def visit_of(
    scenario: Scenario,
    point: Point,
    number: int,
    place: int,
    visits: int,
    quads: int,
    first: SideName,
    source: random.Random,
) -> Visit:
    """The visit at `place` among the `visits` of process pair `number`."""
    running = number * visits + place
    sets = scenario.workload.prompt_sets
    drawn = tuple(Quad(role, quad_order(source.choice(SIDES))) for _ in range(quads) for role in scenario.roles)
    side = first if place % 2 == 0 else other(first)
    return Visit(point, running % sets, side, running // sets * quads * ROUNDS_PER_QUAD, drawn)


def quad_order(first: SideName) -> tuple[SideName, SideName, SideName, SideName]:
    """A B B A, beginning with `first`."""
    return first, other(first), other(first), first


def other(side: SideName) -> SideName:
    return "new" if side == "old" else "old"


def plan_of(scenarios: Sequence[Scenario], pairs: Sequence[ProcessPair], backend: str) -> Plan:
    """The rounds of one side, as its blocks are judged. A round is the same place of every role's quad."""
    rounds = [
        Round(
            point=Point(v.point.scenario, backend, v.point.context, v.point.batch),
            prompt_set=v.prompt_set,
            index=v.rounds + i,
            order=tuple(dict.fromkeys(q.role for q in v.quads)),
            warmup=False,
        )
        for pair in pairs
        for v in pair.visits
        for i in range(ROUNDS_PER_QUAD * len(v.quads) // len({q.role for q in v.quads}))
    ]
    return Plan({s.name: s for s in scenarios}, tuple(rounds))

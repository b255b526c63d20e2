"""The order of a comparison, drawn from a seed before anything is measured.

Processes come in pairs, one of each side. Within a pair, both sides visit the same prompt sets; on a visit, each role
has ABBA groups, A B B A or B A A B, A for the old build. Over the pairs, the visits go through all prompt sets in
turn. The roles take turns, too. Where an engine holds one of them at a time (`servers=apart`), all groups of a role
come together, so that it is loaded once.

Which side is first, is drawn such that each is first in half of the process pairs. A machine that slows every fourth
block then slows both sides alike. If each group were drawn by itself, all groups of a role would begin with the same
side in one schedule of 128. What is slow about a place in a group would then be taken for a property of a build.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.contract import Plan, Point, Role, Round, Scenario
from specgate.contract.two_builds import SIDES, SideName

ROUNDS_PER_GROUP: Final = 2
"""Blocks of each side and role in an ABBA group, which gives each side two rounds."""


@dataclass(frozen=True, slots=True)
class AbbaGroup:
    """Four blocks of one role: the side of each, in running order."""

    role: Role
    order: tuple[SideName, SideName, SideName, SideName]


@dataclass(frozen=True, slots=True)
class Visit:
    """Blocks of one prompt set while one pair of processes runs.

    `first`: the side that prefills first. `rounds`: the number of the first of its rounds; a group takes two.
    `groups`: in running order.
    """

    point: Point
    prompt_set: int
    first: SideName
    rounds: int
    groups: tuple[AbbaGroup, ...]


@dataclass(frozen=True, slots=True)
class ProcessPair:
    """One process of each side. `first`: the side whose process is started first."""

    number: int
    first: SideName
    visits: tuple[Visit, ...]


def schedule_of(
    points: Sequence[tuple[Scenario, Point]], pairs: int, visits: int, groups: int, begin: int = 0
) -> list[ProcessPair]:
    """The schedule of `pairs` pairs of processes: `visits` prompt sets of every point in each, and on each visit
    `groups` ABBA groups of every role.

    `begin`: how many pairs have come before, in a schedule of their own. The visits go on where those ended, and each
    side is first in half of these pairs, too. The seed is that of the first scenario.
    """
    later = f" from {begin}" if begin else ""
    source = random.Random(f"ab {points[0][0].workload.seed} {pairs} {visits} {groups}{later}")
    starting = balanced(pairs, source)
    leading = {(point, role): balanced(pairs, source) for scenario, point in points for role in scenario.roles}
    process_pairs = []
    for number, first in enumerate(starting):
        planned = [
            visit_of(scenario, point, begin + number, place, visits, groups, first, leads)
            for scenario, point in points
            for leads in [{role: leading[point, role][number] for role in scenario.roles}]
            for place in range(visits)
        ]
        process_pairs.append(ProcessPair(begin + number, first, tuple(planned)))
    return process_pairs


def balanced(count: int, source: random.Random) -> list[SideName]:
    """`count` sides in a drawn order: each in half of the places, or in one more where `count` is odd.

    The even and the odd places are balanced by themselves, for rhythms that change sides from place to place.
    """
    extra = source.choice(SIDES)
    drawn_sides: list[SideName] = [extra] * count
    for start, more in ((0, extra), (1, other(extra))):
        places = range(start, count, 2)
        sides = [*SIDES * (len(places) // 2), *[more] * (len(places) % 2)]
        source.shuffle(sides)
        for place, side in zip(places, sides, strict=True):
            drawn_sides[place] = side
    return drawn_sides


def visit_of(
    scenario: Scenario,
    point: Point,
    number: int,
    place: int,
    visits: int,
    groups: int,
    first: SideName,
    leading: Mapping[Role, SideName],
) -> Visit:
    """The visit at `place` among the `visits` of process pair `number`.

    `leading`: role → the side that its first group in this process pair begins with. Later ones take turns.
    """
    running = number * visits + place
    sets = scenario.workload.prompt_sets
    in_turns = [(role, i) for i in range(groups) for role in scenario.roles]
    if scenario.schedule.by_load:
        in_turns = [(role, i) for role in scenario.roles for i in range(groups)]
    planned = tuple(AbbaGroup(role, abba_order(turn(leading[role], place * groups + i))) for role, i in in_turns)
    return Visit(point, running % sets, turn(first, place), running // sets * groups * ROUNDS_PER_GROUP, planned)


def turn(first: SideName, count: int) -> SideName:
    """Whose turn it is after `count` turns."""
    return first if count % 2 == 0 else other(first)


def abba_order(first: SideName) -> tuple[SideName, SideName, SideName, SideName]:
    """A B B A, beginning with `first`."""
    return first, other(first), other(first), first


def other(side: SideName) -> SideName:
    return "new" if side == "old" else "old"


def plan_of(scenarios: Sequence[Scenario], pairs: Sequence[ProcessPair], backend: str) -> Plan:
    """The rounds of one side, as its blocks are judged. A round is the same place of every role's group."""
    rounds = [
        Round(
            point=Point(v.point.scenario, backend, v.point.context, v.point.batch),
            prompt_set=v.prompt_set,
            index=v.rounds + i,
            order=tuple(dict.fromkeys(q.role for q in v.groups)),
            warmup=False,
        )
        for pair in pairs
        for v in pair.visits
        for i in range(ROUNDS_PER_GROUP * len(v.groups) // len({q.role for q in v.groups}))
    ]
    return Plan({s.name: s for s in scenarios}, tuple(rounds))

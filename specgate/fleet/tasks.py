"""Messages between a coordinator and a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from specgate import errors
from specgate.contract import Plan, Point
from specgate.errors import SpecgateError

TASK: Final = "task.json"
"""The file that tells a node what to do, beside config.resolved.yaml, env.json and run.json of the run."""
DONE: Final = "done.json"
"""The file that says that a node has ended its task, and how. It is written last."""
GENERATIONS: Final = 1000
"""Numbers of engine processes that a task has to itself, so that the samples of tasks can be put together."""
ROUNDS_OF_TASKS: Final = 4
"""Tasks that each slot gets if all last equally long. Fewer load an engine less often, more leave less idle at the end.
"""


@dataclass(frozen=True, slots=True)
class Task:
    """Points that one machine measures. Each is whole: baseline and speculation of a pair are never split.
    `first_generation`: the number of the first engine process.
    `runs`: the folder of the coordinator's runs, which no engine in a sandbox may see.
    """

    points: tuple[str, ...]
    first_generation: int
    runs: str | None = None

    @property
    def generations(self) -> range:
        """The numbers that its engine processes may have."""
        return range(self.first_generation, self.first_generation + GENERATIONS)

    @property
    def name(self) -> str:
        return self.points[0] if len(self.points) == 1 else f"{self.points[0]} and {len(self.points) - 1} more"


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a task. `samples`: journal → SHA-256 of its bytes.

    `failures`: point key → why the point is missing or incomplete. `unlike`: how this machine differs from the one that
    the run began on; nothing was measured then. `stopped`: the error that ended the task before its plan was done.
    """

    samples: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    unlike: tuple[str, ...] = ()
    stopped: Stop | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """An error of `specgate.errors`, by the name of its class."""

    error: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: SpecgateError) -> Stop:
        return cls(type(error).__name__, error.message, error.hint)

    def raised(self) -> SpecgateError:
        """The error again."""
        known = getattr(errors, self.error, None)
        kind = known if isinstance(known, type) and issubclass(known, SpecgateError) else SpecgateError
        return kind(self.message, hint=self.hint)


def only(plan: Plan, points: Sequence[str]) -> Plan:
    """`plan` without all points but these."""
    keys = set(points)
    return Plan(plan.scenarios, tuple(r for r in plan.rounds if r.point.key in keys))


def parcelled(points: Sequence[Point], slots: int) -> list[tuple[str, ...]]:
    """`points` in the order of the plan, cut into tasks of one scenario each: about `ROUNDS_OF_TASKS` for each of
    `slots`.
    """
    most = max(1, -(-len(points) // (slots * ROUNDS_OF_TASKS)))
    return [
        tuple(point.key for point in chunk)
        for _, mine in groupby(points, key=lambda point: point.scenario)
        for chunk in cut(list(mine), most)
    ]


def cut(points: Sequence[Point], most: int) -> Iterator[Sequence[Point]]:
    """`points` in as few chunks of at most `most` as there can be, all about equally long."""
    chunks = -(-len(points) // most)
    for n in range(chunks):
        yield points[n * len(points) // chunks : (n + 1) * len(points) // chunks]

"""Points, cells and rounds: what a run does, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from specgate.contract.scenarios.roles import BASELINE, VARIANT_MARK, Role
from specgate.contract.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Point:
    """Scenario × backend × batch × context. The blocks of one point share prompts, prefill and engine.

    `context` is the prompt length in tokens, `batch` the number of prompts decoded together. Prompts from a file have
    at most `context` tokens. Of a server under load, `batch` is the number of clients; in an open loop, the most
    requests that the server decodes together.
    """

    scenario: str
    backend: str
    context: int
    batch: int
    rate: float | None = None
    """Requests per second of an open loop; None everywhere else."""

    @property
    def unvaried(self) -> str:
        """The name of the scenario that this point's is a variant of, or is itself."""
        plain, _, variant = self.scenario.partition(VARIANT_MARK)
        return plain if plain and variant else self.scenario

    @property
    def variant(self) -> str:
        """The name of the variant; empty for the scenario itself."""
        return self.scenario[len(self.unvaried) + len(VARIANT_MARK) :]

    @property
    def key(self) -> str:
        """The name of the point in stored files: `scenario/backend/cCONTEXT/bBATCH`, and `/qRATE` in an open loop."""
        return self.key_in(self.scenario)

    def key_in(self, scenario: str) -> str:
        """The key of this point if it were one of `scenario`."""
        arrivals = "" if self.rate is None else f"/q{self.rate:g}"
        return f"{scenario}/{self.backend}/c{self.context}/b{self.batch}{arrivals}"

    @property
    def level(self) -> float:
        """The level of load: requests per second in an open loop, else requests at a time."""
        return float(self.batch) if self.rate is None else self.rate


@dataclass(frozen=True, slots=True)
class Cell:
    """Scenario × backend × batch × context × role, and the variant of the role."""

    point: Point
    role: Role

    @property
    def role_name(self) -> str:
        """The role with its variant: `"spec-3"`, `"spec-3+kv-fp8"`, `"baseline+kv-fp8"`."""
        return f"{self.role}{VARIANT_MARK}{self.point.variant}" if self.point.variant else self.role.name

    @property
    def anywhere(self) -> Cell:
        """The cell on no back end: the same question on every one."""
        return replace(self, point=replace(self.point, backend=""))

    @property
    def baseline(self) -> Cell:
        """The cell that this one is compared with: the baseline of its point, so of the same variant."""
        return Cell(self.point, BASELINE)

    @property
    def key(self) -> str:
        """The name of the cell in stored files: the point's key without the variant, then the role with it."""
        return f"{self.point.key_in(self.point.unvaried)}/{self.role_name}"


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every role on one prompt set.

    `order`: the roles in running order.
    `warmup`: warm-up rounds are journaled but never judged.
    """

    point: Point
    prompt_set: int
    index: int
    order: tuple[Role, ...]
    warmup: bool

    @property
    def key(self) -> str:
        """A name that is unique within a plan."""
        kind = "w" if self.warmup else "r"
        return f"{self.point.key}/s{self.prompt_set}/{kind}{self.index}"


@dataclass(frozen=True)
class Plan:
    """Everything a run will do, in order, before it does any of it."""

    scenarios: Mapping[str, Scenario]
    rounds: tuple[Round, ...]

    @cached_property
    def _of_point(self) -> Mapping[Point, Sequence[Round]]:
        rounds: dict[Point, list[Round]] = {}
        for round_ in self.rounds:
            rounds.setdefault(round_.point, []).append(round_)
        return rounds

    @property
    def points(self) -> tuple[Point, ...]:
        """Every point, in running order."""
        return tuple(self._of_point)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, in running order of the points."""
        return tuple(Cell(p, role) for p in self.points for role in self.scenarios[p.scenario].roles)

    def rounds_of(self, point: Point) -> Iterator[Round]:
        """The rounds of one point, warm-up included, in running order."""
        return iter(self._of_point.get(point, ()))

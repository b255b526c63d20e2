"""What is asked of an engine: roles, scenarios, points, cells and the plan of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """How a block decodes: `k = 0` is `baseline` (no draft), `k > 0` is `spec-k` (a chain of k drafted tokens)."""

    k: int

    @property
    def name(self) -> str:
        return f"spec-{self.k}" if self.k else "baseline"

    @property
    def speculative(self) -> bool:
        return self.k > 0

    @classmethod
    def parse(cls, text: str) -> Role:
        """`"baseline"` or `"spec-N"`. Raises ValueError."""
        if text == "baseline":
            return cls(0)
        prefix, _, digits = text.partition("-")
        if prefix == "spec" and digits.isdigit() and int(digits) > 0:
            return cls(int(digits))
        raise ValueError(f"{text!r} is not a role; a role is 'baseline' or 'spec-N' with N > 0")

    def __str__(self) -> str:
        return self.name


BASELINE = Role(0)


AcceptanceSource = Literal["real", "planted", "stand-in", "forced", "scripted"]
"""Where acceptance comes from, printed beside every figure: a trained pair, analytic weights, a drafter in the
place of the pair's (its drafts are verified, so its tokens are right), an engine's simulation knob (they are
wrong), or an engine that decodes nothing at all.
"""


@dataclass(frozen=True, slots=True)
class PairRef:
    """A target checkpoint and a draft checkpoint.

    `acceptance` holds for an engine that decodes with the pair as it is; one that does not says so itself. `rope`
    overrides the target's RoPE scaling (Hugging Face keys, e.g. ``{"rope_type": "yarn", "factor": 4.0}``); `None` obeys
    the checkpoint.
    """

    name: str
    target: Path
    draft: Path | None
    acceptance: AcceptanceSource = "real"
    rope: Mapping[str, float | str] | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a scenario. `context` is the exact prompt length in tokens; `spec` lists draft lengths K ≥ 1."""

    context: tuple[int, ...]
    batch: tuple[int, ...]
    spec: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Which prompts. `prompt_sets` sets of `batch` prompts each are measured; warm-up prompts come from another
    pool.
    """

    source: str
    seed: int
    prompt_sets: int
    warmup_sets: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How long one block decodes: `steps` engine steps (micro) or `new_tokens` per request (full); exactly one is set.

    `ignore_eos` keeps a request going past EOS and stop tokens, so that every block does the same amount of work.
    """

    steps: int | None = None
    new_tokens: int | None = None
    ignore_eos: bool = True

    def longest(self, k: int) -> int:
        """Upper bound of tokens a slot can gain in one block at draft length `k` (for KV room and context checks)."""
        if self.new_tokens is not None:
            return self.new_tokens
        assert self.steps is not None
        return self.steps * (k + 1)


PASS_ROUNDS = 2
"""Rounds that a pass gives every prompt set before the next pass begins: one in each order, A B · B A."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """At most `rounds` rounds per prompt set, each one block of every role; the order of roles is reversed every round.

    A point ends before its last pass where a look finds every rule that rests on samples decided.
    """

    rounds: int
    warmup_rounds: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, fully resolved. `kind` is the command that runs it; `needs` the least machine it makes sense on."""

    name: str
    question: str
    kind: Literal["micro", "full"]
    family: str
    needs: Literal["cpu", "gpu"]
    pair: str
    dtype: Literal["float32", "bfloat16", "float16"]
    grid: Grid
    workload: Workload
    budget: Budget
    schedule: Schedule
    perf_mode: bool
    timeout_s: float
    rope: Mapping[str, float | str] | None = None
    default: bool = True
    """Whether a command that names no scenario runs this one."""
    source_file: Path | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        return (BASELINE, *(Role(k) for k in self.grid.spec))


@dataclass(frozen=True, slots=True)
class Point:
    """Scenario × backend × batch × context: the blocks of one point share prompts, prefill and engine."""

    scenario: str
    backend: str
    context: int
    batch: int

    @property
    def key(self) -> str:
        return f"{self.scenario}/{self.backend}/c{self.context}/b{self.batch}"


@dataclass(frozen=True, slots=True)
class Cell:
    """Scenario × backend × batch × context × role."""

    point: Point
    role: Role

    @property
    def key(self) -> str:
        return f"{self.point.key}/{self.role}"


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every role on one prompt set, in running order. `warmup` rounds are journaled but never judged."""

    point: Point
    prompt_set: int
    index: int
    order: tuple[Role, ...]
    warmup: bool

    @property
    def key(self) -> str:
        kind = "w" if self.warmup else "r"
        return f"{self.point.key}/s{self.prompt_set}/{kind}{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run will do, in order, before it does any of it."""

    scenarios: Mapping[str, Scenario]
    rounds: tuple[Round, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(dict.fromkeys(r.point for r in self.rounds))

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(Cell(p, role) for p in self.points for role in self.scenarios[p.scenario].roles)

    def rounds_of(self, point: Point) -> Iterator[Round]:
        return (r for r in self.rounds if r.point == point)

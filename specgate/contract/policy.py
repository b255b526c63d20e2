"""Rules of a policy, its exemptions, and how far it has tokens checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from specgate.contract.scenarios.plan import Cell
from specgate.contract.types import FILLED_IN, Convert, LeavesOut, Length, Range, Text
from specgate.contract.verdict import Kind


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy: a gate, the cells that it judges, and its parameters."""

    id: Text
    """The name of the rule."""
    gate: Text
    """The gate that judges. A policy file has the gate's own parameters beside the rule's keys."""
    required: bool
    """Whether the rule's verdicts count for the exit code."""
    scenario: Text = "*"
    """A glob pattern of the scenarios that it judges, without their variants."""
    role: Text = "*"
    """A glob pattern of the roles that it judges, with their variants."""
    params: Annotated[Mapping[str, float | str | bool], FILLED_IN] = field(default_factory=dict)
    """The gate's parameters."""
    unless: Annotated[tuple[tuple[str, str], ...], FILLED_IN] = ()
    """(scenario, role) patterns of cells that the rule leaves to other rules, of one with `otherwise`."""
    otherwise: bool = False
    """Whether it judges only the cells that no other rule of its gate selects."""

    def matches(self, cell: Cell) -> bool:
        """True if the rule's `scenario` and `role` patterns select `cell`, and it is not left to another rule."""
        return selects(self.scenario, self.role, cell) and not any(selects(s, r, cell) for s, r in self.unless)


@dataclass(frozen=True, slots=True)
class Exemption:
    """Judgement that a policy gives up, and the reason."""

    kind: Text
    """The kind of judgement that is given up."""
    why: Text
    """The reason."""
    scenario: Text = "*"
    """A glob pattern of the scenarios that it speaks of."""
    role: Text = "*"
    """A glob pattern of the roles that it speaks of."""

    def covers(self, kind: Kind, cell: Cell) -> bool:
        """True if it says that `kind` is not judged of `cell`."""
        return kind == self.kind and selects(self.scenario, self.role, cell)


def selects(scenario: str, role: str, cell: Cell) -> bool:
    """True if two glob patterns select `cell`: one of scenarios without variants, and one of roles with variants.

    `spec-3` is the plain role alone, `spec-3*` has its variants too, and `*+kv-fp8` is every role of a variant.
    """
    return fnmatchcase(cell.point.unvaried, scenario) and fnmatchcase(cell.role_name, role)


def engine_or_none(name: object) -> object:
    """Return the name of an engine; empty for `none`."""
    return "" if name == "none" else name


@dataclass(frozen=True, slots=True)
class TokenChecks:
    """Extent of a run's checks of the tokens that an engine hands over. All of it happens outside the timed blocks."""

    text: Literal["whole", "sampled"] = "whole"
    """`whole` compares every token of every speculative block with the baseline's. `sampled` does so too, until a run
    of the same fingerprint was green; from then on it does so for one prompt set of every point, which the run's id
    draws, and compares the others as far as the timed baseline blocks go.
    """
    rescored_by: Annotated[str, Convert(engine_or_none, {"const": "none"})] = "reference"
    """The back end that scores a sample of the tokens again; `none`, or empty, for none."""
    positions: Annotated[int, Range(ge=1, le=65_536)] = 64
    """Tokens of every cell that it scores, at least; at least eight of every text."""
    within_s: Annotated[float, Range(gt=0, le=86_400)] = 120.0
    """Seconds that each of its answers may take, and loading. Beyond that it is asked once more, and then given up."""
    followed: Annotated[int, Range(ge=0, le=4096)] = 8
    """Texts of a cell for which plain decoding is asked, behind a near tie, how it goes on."""
    followed_tokens: Annotated[int, Range(ge=1, le=65_536)] = 64
    """Tokens that it decodes for each."""


@dataclass(frozen=True, slots=True)
class Policy(LeavesOut):
    """The rules that a run is judged by, in the order of the file."""

    LEFT_OUT: ClassVar = frozenset({"elsewhere"})

    name: Annotated[str, FILLED_IN]
    """The stem of the file."""
    rules: Annotated[tuple[Rule, ...], Length(1)]
    """The rules; every one has an id of its own."""
    source_file: Annotated[Path | None, FILLED_IN] = None
    micro: tuple[Text, ...] = ()
    """Micro scenarios that must be green before a full run, by name or by file relative to the policy's. Without any:
    all micro scenarios that the machine runs by default.
    """
    checks: TokenChecks = field(default_factory=TokenChecks)
    not_judged: tuple[Exemption, ...] = ()
    """What the policy leaves unjudged on purpose."""
    unreachable: Literal["warn", "refuse"] = "warn"
    """What becomes of a required floor that cannot be reached."""
    elsewhere: Annotated[tuple[str, ...] | None, FILLED_IN] = None
    """Ids of the rules that select nothing of this run, but cells of other scenarios; None where nobody has looked."""

"""What was decided: rules, verdicts, and the whole run as gates and reports see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, Literal

from specgate.core.asked import AcceptanceSource, Cell, PairRef, Scenario
from specgate.core.conditions import Conditions
from specgate.core.cycle_budget import Bandwidth, CycleBudget
from specgate.core.found import CellResult, Comparison
from specgate.core.measured import EngineFacts
from specgate.core.stored_keys import stored_keys
from specgate.core.traces import Invariant


class State(StrEnum):
    """The states a verdict can have."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    SKIPPED = "SKIPPED"
    ENV_REJECTED = "ENV_REJECTED"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a policy: which gate, on which cells, with which numbers; `required` decides the exit code."""

    id: str
    gate: str
    required: bool
    scenario: str = "*"
    role: str = "*"
    params: Mapping[str, float | str | bool] = field(default_factory=dict)

    def matches(self, cell: Cell) -> bool:
        """Whether its `scenario` and `role` patterns select `cell`."""
        return fnmatchcase(cell.point.scenario, self.scenario) and fnmatchcase(cell.role.name, self.role)


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    rules: tuple[Rule, ...]
    source_file: Path | None = None
    micro: tuple[str, ...] = ()
    """Micro scenarios (names, or files seen from `source_file`) that must be green before a full run; none: all micro
    scenarios that the machine runs by default.
    """


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate says of one cell, with the reason as code and sentence, the numbers, and what to do next."""

    rule: str
    gate: str
    cell: str
    state: State
    required: bool
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """Where a run stands between micro and full, when it begins.

    `gates`: name → SHA-256 of the micro scenarios that must be green `needed` times in a row; `streak`: how often they
    have been; `command`: what advances the streak; `override`: why a full run was allowed to begin without it.
    """

    gates: Mapping[str, str]
    needed: int
    streak: int
    command: str
    override: str | None = None


@dataclass(frozen=True, slots=True)
class LastGreen:
    """The last green run of the same kind and subject before a run, as the ledger beside them knows it.

    `differences`: (key, then, now) over fingerprint and environment, None for a key that one of them does not have; all
    of it None where that run can no longer be read.
    """

    run: str
    time: str
    differences: tuple[tuple[str, str | None, str | None], ...] | None


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run as gates and reports see it: what was asked, on what, what was found, what was decided."""

    __pydantic_config__: ClassVar = stored_keys(promotion="order")

    id: str
    kind: Literal["micro", "full"]
    status: Literal["running", "complete", "partial", "interrupted"]
    started: str
    ended: str | None
    argv: tuple[str, ...]
    tool_version: str
    fingerprint: Mapping[str, str | None]
    environment: Mapping[str, object]
    scenarios: Mapping[str, Scenario]
    pair: PairRef
    engines: Mapping[str, EngineFacts]
    prompts: Mapping[str, Mapping[str, object]]
    """point key → {"sha256": …, "sources": […], "pool": …} of the measured prompts."""
    cells: tuple[CellResult, ...]
    comparisons: tuple[Comparison, ...]
    failures: Mapping[str, str]
    """point key → the sentence that says why its blocks are missing or incomplete."""
    verdicts: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    certificates: Mapping[str, tuple[Invariant, ...]] = field(default_factory=dict)
    """cell key → its PERF_MODE invariants, for the cells of scenarios that ask for them."""
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    """point key → what the machine did while its blocks were measured."""
    mde: Mapping[str, float] = field(default_factory=dict)
    """cell key → minimum detectable effect (ratio less 1), from this machine's noise passport; empty without one."""
    ended_early: Mapping[str, int] = field(default_factory=dict)
    """point key → the planned rounds after which a look found it decided, where further ones were planned."""
    promotion: Promotion | None = None
    last_green: LastGreen | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """File of the run folder → SHA-256, of those that were finished before the reports."""
    bandwidth: Bandwidth | None = None
    """Of this machine's memory, where it had been measured when the run began."""
    budgets: Mapping[str, CycleBudget] = field(default_factory=dict)
    """cell key → where the time of its cycles goes; of cells whose times may be quoted."""

    @property
    def acceptance(self) -> AcceptanceSource:
        """The engines' where one of them says so, else the pair's. The engines of a run are of one back end."""
        return next((f.acceptance for f in self.engines.values() if f.acceptance), self.pair.acceptance)

    def draft_trouble(self, result: CellResult) -> str | None:
        """In one line, why steps of a spec cell had no draft, where it could not be used; None where it could."""
        if not result.cell.role.speculative:
            return None
        engine = self.engines.get(result.cell.point.key)
        if engine is not None and engine.draft_error:
            return engine.draft_error.splitlines()[0]
        plain = result.values.get("disabled_draft_error")
        if plain is None or not plain.value:
            return None
        return f"{plain.value:.0f} of {plain.n} request-steps decoded plainly"

    def result(self, cell_key: str) -> CellResult | None:
        return next((c for c in self.cells if c.cell.key == cell_key), None)

    def comparison(self, cell_key: str) -> Comparison | None:
        return next((c for c in self.comparisons if c.cell.key == cell_key), None)

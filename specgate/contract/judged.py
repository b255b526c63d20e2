"""What was decided: rules, verdicts, and the whole run as gates and reports see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal

from specgate.contract.asked import AcceptanceSource, Cell, PairRef, RunKind, Scenario
from specgate.contract.conditions import Conditions
from specgate.contract.cycle_budget import Bandwidth, CycleBudget
from specgate.contract.draws import DrawCheck
from specgate.contract.found import BetweenRuns, CellResult, Comparison
from specgate.contract.load.break_even import BreakEven
from specgate.contract.measured import EngineFacts
from specgate.contract.references import Builds, CellTimes, Earlier
from specgate.contract.traces import Invariant
from specgate.contract.types import FILLED_IN, Convert, Length, Range, Share, Text


class State(StrEnum):
    """The states a verdict can have."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    SKIPPED = "SKIPPED"
    ENV_REJECTED = "ENV_REJECTED"
    NOT_JUDGED = "NOT_JUDGED"
    """Nothing is red, but something that has to be judged was not: of a whole run, or of what a rule asks for."""


Kind = str
"""A kind of judgement: one of `KINDS`, or a gate's own."""
KINDS: Final = ("validity", "tokens", "acceptance", "speed")
"""Kinds of judgement that every run needs: see `analysis.verdict.wanted`."""

SPEEDUP: Final = "speedup"
ACCEPTANCE_LENGTH: Final = "acceptance_length"


@dataclass(frozen=True, slots=True)
class Floor:
    """The least figure that a rule demands of each of its cells.

    `figure`: SPEEDUP or ACCEPTANCE_LENGTH, whose floors are compared with what a cell can reach, or a gate's own.
    `text`: the demand as reports show it, such as `≥ 2×`.
    """

    figure: str
    least: float
    text: str


@dataclass(frozen=True, slots=True)
class AllowedLoss:
    """The loss that a rule allows. `key`: the parameter that sets it. `percent`: its size."""

    key: str
    percent: float


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
        """Whether the rule's `scenario` and `role` patterns select `cell`, and it is not left to another rule."""
        return selects(self.scenario, self.role, cell) and not any(selects(s, r, cell) for s, r in self.unless)


@dataclass(frozen=True, slots=True)
class Exemption:
    """What a policy does not judge, and why."""

    kind: Text
    """The kind of judgement that is given up."""
    why: Text
    """The reason."""
    scenario: Text = "*"
    """A glob pattern of the scenarios that it speaks of."""
    role: Text = "*"
    """A glob pattern of the roles that it speaks of."""

    def covers(self, kind: Kind, cell: Cell) -> bool:
        """Whether it says that `kind` is not judged of `cell`."""
        return kind == self.kind and selects(self.scenario, self.role, cell)


@dataclass(frozen=True, slots=True)
class Gap:
    """What no required rule of the policy judged, though a run has to be judged by it.

    `cells`: keys of the cells, in the order of the plan.
    `why`: the reason that the policy gives; None where it gives none, which is what makes a run NOT_JUDGED.
    """

    kind: Kind
    cells: tuple[str, ...]
    why: str | None


def selects(scenario: str, role: str, cell: Cell) -> bool:
    """Whether two glob patterns select `cell`: one of scenarios, without their variants, and one of roles with them, so
    that `spec-3` is the plain role alone, `spec-3*` has its variants too, and `*+kv-fp8` is every role of a variant.
    """
    return fnmatchcase(cell.point.unvaried, scenario) and fnmatchcase(cell.role_name, role)


def engine_or_none(name: object) -> object:
    """Return the name of an engine; empty for `none`."""
    return "" if name == "none" else name


@dataclass(frozen=True, slots=True)
class TokenChecks:
    """How far a run goes to check the tokens that an engine hands over. All of it happens outside the timed blocks."""

    text: Literal["whole", "sampled"] = "whole"
    """`whole` compares every token of every speculative block with the baseline's. `sampled` does so too, until a run
    of the same fingerprint was green; from then on it does so for one prompt set of every point, which the run's id
    draws, and compares the others as far as the timed baseline blocks go.
    """
    rescored_by: Annotated[str, Convert(engine_or_none, {"const": "none"})] = "reference"
    """The back end that scores a sample of the tokens again; `none`, or empty, for none."""
    positions: Annotated[int, Range(ge=1, le=65_536)] = 64
    """Tokens of every cell that it scores."""
    within_s: Annotated[float, Range(gt=0, le=86_400)] = 120.0
    """Seconds that it may take for one point, loading included. Beyond that nothing is scored."""
    max_gap: Annotated[float, Range(ge=0, le=100)] = 0.5
    """A token that is not its greedy choice is a near tie if the gap between their logits is at most this."""
    max_near_ties: Share = 0.1
    """The largest share of scored tokens that may be near ties."""
    followed: Annotated[int, Range(ge=0, le=4096)] = 8
    """Texts of a cell for which plain decoding is asked, behind a near tie, how it goes on."""
    followed_tokens: Annotated[int, Range(ge=1, le=65_536)] = 64
    """Tokens that it decodes for each."""
    second_look: Literal["none", "float32"] = "none"
    """The number format in which it scores once more what lies beyond `max_gap` in the scenario's, if that is little
    enough for all of it to be near ties; `none` for no second look.
    """


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that a run is judged by, in the order of the file."""

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate's judgement of one cell: a state, the reason as code and sentence, the numbers, and what to do next.

    `covers`: keys of further cells that the verdict judges together with `cell`, such as a sweep's.
    `judges`, `floor`: as the gate declares them for the rule. The harness fills them in.
    """

    rule: str
    gate: str
    cell: str
    state: State
    required: bool
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)
    next_step: str | None = None
    covers: tuple[str, ...] = ()
    judges: tuple[Kind, ...] = ()
    floor: Floor | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """How far a subject had come from micro to full when a run of it began.

    `gates`: name → SHA-256 of the micro scenarios that must be green.
    `needed`: how many times in a row they must be green.
    `streak`: how many times in a row they have been.
    `command`: the command that advances the streak.
    `override`: why a full run was allowed to begin without it; None where it was not.
    """

    gates: Mapping[str, str]
    needed: int
    streak: int
    command: str
    override: str | None = None


@dataclass(frozen=True, slots=True)
class LastGreen:
    """The last green run of the same kind and subject before a run, according to the ledger beside them.

    `differences`: (key, then, now) over fingerprint and environment; a value is None where that run does not have the
        key. `differences` itself is None where the earlier run can no longer be read.
    """

    run: str
    time: str
    differences: tuple[tuple[str, str | None, str | None], ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The part of a run that a gate may look at: what was asked, what was measured, and what it is held against."""

    status: Literal["running", "complete", "partial", "interrupted"]
    argv: tuple[str, ...]
    fingerprint: Mapping[str, str | None]
    scenarios: Mapping[str, Scenario]
    pair: PairRef
    engines: Mapping[str, EngineFacts]
    prompts: Mapping[str, Mapping[str, object]]
    """Point key → {"sha256": …, "sources": […], "pool": …} of the measured prompts."""
    cells: tuple[CellResult, ...]
    comparisons: tuple[Comparison, ...]
    failures: Mapping[str, str]
    """Point key → the sentence that says why its blocks are missing or incomplete."""
    certificates: Mapping[str, tuple[Invariant, ...]] = field(default_factory=dict)
    """Cell key → its PERF_MODE invariants, for the cells of scenarios that ask for them."""
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    """Point key → what the machine did while its blocks were measured."""
    mde: Mapping[str, float] = field(default_factory=dict)
    """Cell key → minimum detectable effect (ratio less 1), from this machine's noise passport; empty without one."""
    between_runs: Mapping[str, BetweenRuns] = field(default_factory=dict)
    """Cell key → what differs between processes and machines, from noise passports; cells without one are judged with
    what is assumed (`analysis.intervals.between_runs`).
    """
    required_decisions: int = 0
    """How many cells required rules decide by samples. The error of a FAIL is split over them."""
    bandwidth: Bandwidth | None = None
    """The read bandwidth of this machine's memory; None where it had not been measured when the run began."""
    budgets: Mapping[str, CycleBudget] = field(default_factory=dict)
    """Cell key → where the time of its cycles goes, for the cells whose times may be quoted."""
    sampled_after: str | None = None
    """The green run of the same fingerprint whose texts were compared whole, so that this one compares a sample; None
    where this run compares them whole.
    """
    times: Mapping[str, CellTimes] = field(default_factory=dict)
    """Cell key → what later runs are held against; empty where no rule of the policy is about an earlier run."""
    earlier: Earlier | None = None
    """The last green runs that this one is held against; None where no rule asks for them."""
    builds: Builds | None = None
    """Comparisons of builds that this run may rest on; None where no rule asks for them."""
    draws: Mapping[str, DrawCheck] = field(default_factory=dict)
    """Cell key → what the texts amount to that were drawn of it, for the cells of scenarios with `sampling`."""
    break_even: tuple[BreakEven, ...] = ()
    """Up to which level of load speculation pays, one entry per sweep; empty where no server was put under load."""

    @property
    def acceptance(self) -> AcceptanceSource:
        """Where acceptance comes from: what an engine says, else what the pair says. A run has one back end."""
        return next((f.acceptance for f in self.engines.values() if f.acceptance), self.pair.acceptance)

    def draft_trouble(self, result: CellResult) -> str | None:
        """One line on why steps of a spec cell had no draft, where the draft could not be used; None where it could."""
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
        """The result of the cell with this key; None where the run has none."""
        return next((c for c in self.cells if c.cell.key == cell_key), None)

    def comparison(self, cell_key: str) -> Comparison | None:
        """The comparison of the spec cell with this key; None where the run has none."""
        return next((c for c in self.comparisons if c.cell.key == cell_key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RunView):
    """A whole run as reports see it: what gates look at, what they decided, and where and when it was measured."""

    id: str
    kind: RunKind
    started: str
    ended: str | None
    tool_version: str
    environment: Mapping[str, object]
    verdicts: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    ended_early: Mapping[str, int] = field(default_factory=dict)
    """Point key → measured rounds after which an interim look found the point decided, where further rounds were
    planned.
    """
    promotion: Promotion | None = None
    last_green: LastGreen | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """File of the run folder → SHA-256, for the files that were finished before the reports were written."""
    reports: tuple[str, ...] = ()
    """Files of the reports that were written beside it."""
    check_seconds: Mapping[str, float] = field(default_factory=dict)
    """`blocks`, `text`, `logits`, `rescoring`, `draws` → seconds that the timed blocks and each check beside them took.
    """
    not_judged: tuple[Gap, ...] = ()
    """What a run has to be judged by and was not, with the policy's reasons."""

    @property
    def view(self) -> RunView:
        """The part of the run that gates are given."""
        return RunView(**{of.name: getattr(self, of.name) for of in fields(RunView)})

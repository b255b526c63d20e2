"""A whole run as reports see it, and the part of it that gates see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from specgate.contract.conditions import Conditions
from specgate.contract.cycle_budget import Bandwidth, CycleBudget
from specgate.contract.draws import DrawCheck
from specgate.contract.load import BestDraft, BreakEven, MaxGoodput
from specgate.contract.references import Builds, CellTimes, Earlier
from specgate.contract.results import BetweenRuns, CellResult, Comparison
from specgate.contract.samples.engine_facts import EngineFacts
from specgate.contract.samples.time_spent import TimeEnds
from specgate.contract.scenarios.pair import AcceptanceSource, PairRef
from specgate.contract.scenarios.scenario import RunKind, Scenario
from specgate.contract.traces import Invariant
from specgate.contract.verdict import Gap, Verdict
from specgate.errors import ExitCode

EXPLORED: Final = "exploration"
"""Why a run began that is never green (`Promotion.override`)."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """Progress of a subject from micro to full when a run of it began.

    `gates`: name → SHA-256 of the micro scenarios that must be green.
    `needed`: how many times in a row they must be green.
    `streak`: how many times in a row they have been.
    `command`: the command that adds a green run.
    `override`: why a full run was allowed to begin without it; EXPLORED: to explore, with nothing promoted; None where
        it was not.
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
    """The part of a run that a gate may look at: what was asked, what was measured, and what it is compared with."""

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
    """Cell key → minimum detectable effect (ratio less 1), from this machine's noise profile; empty without one."""
    between_runs: Mapping[str, BetweenRuns] = field(default_factory=dict)
    """Cell key → what differs between processes and machines, from noise profiles; cells without one are judged with
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
    """Cell key → times that later runs are compared with; empty where no rule of the policy is about an earlier run."""
    earlier: Earlier | None = None
    """The last green runs that this one is compared with; None where no rule asks for them."""
    builds: Builds | None = None
    """Comparisons of builds that this run may rest on; None where no rule asks for them."""
    draws: Mapping[str, DrawCheck] = field(default_factory=dict)
    """Cell key → what the texts amount to that were drawn of it, for the cells of scenarios with `sampling`."""
    break_even: tuple[BreakEven, ...] = ()
    """Up to which level of load speculation pays, one entry per sweep; empty where no server was put under load."""
    max_goodput: tuple[MaxGoodput, ...] = ()
    """Up to which level of load the scenario's latency limits hold, one entry per sweep and role."""
    best_drafts: tuple[BestDraft, ...] = ()
    """The best draft length at every level of load that was measured with several."""
    check_seconds: Mapping[str, float] = field(default_factory=dict)
    """`blocks`, `text`, `logits`, `rescoring`, `draws` → seconds that the timed blocks and each check beside them took;
    `starts`, `first`, `warmup`, `measured` → starts of engines, the first answer of each role after a start, other
    untimed blocks, and timed ones.
    """
    time_ends: TimeEnds = field(default_factory=dict)
    """Point key → where its time was spent before it was decided. Each such end is an interim look."""

    @property
    def acceptance(self) -> AcceptanceSource:
        """Source of acceptance: as an engine says, else as the pair says. A run has one back end."""
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
    """Point key → measured rounds after which an interim look found the point decided, or its time was spent, where
    further rounds were planned.
    """
    stopped: ExitCode | None = None
    """The exit code of what ended the run before its plan was done; `failures` has its reason."""
    promotion: Promotion | None = None
    last_green: LastGreen | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """File of the run folder → SHA-256, for the files that were finished before the reports were written."""
    reports: tuple[str, ...] = ()
    """Files of the reports that were written beside it."""
    not_judged: tuple[Gap, ...] = ()
    """What a run has to be judged by and was not, with the policy's reasons."""

    @property
    def view(self) -> RunView:
        """The part of the run that gates are given."""
        return RunView(**{of.name: getattr(self, of.name) for of in fields(RunView)})

"""The command line of a run: parsed, but not yet checked against scenarios, pairs and this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specgate.contract import RunKind
from specgate.planning.ad_hoc import NOTHING, Question


@dataclass(frozen=True, slots=True)
class Request:
    """The command line of `micro`, `full` or `load`: parsed, but not yet checked against scenarios, pairs and this
    machine.
    """

    kind: RunKind
    argv: tuple[str, ...]
    plain: bool
    out: Path
    backend: str | None = None
    scenarios: Sequence[str] = ()
    only: str | None = None
    policy: str | None = None
    pair: str | None = None
    target: Path | None = None
    draft: Path | None = None
    tokenizer: Path | None = None
    """Of a server that runs already, in the place of a pair."""
    warmup_runs: int | None = None
    measurement_runs: int | None = None
    budget: float | None = None
    """Seconds of measuring that a point gets, which is then measured until it is decided."""
    question: Question = NOTHING
    """What is asked in the place of what the scenarios say."""
    perf_mode: bool | None = None
    baseline: bool = True
    """False: the roles with a draft alone, of a server that is measured by itself."""
    options: Mapping[str, str] = field(default_factory=dict)
    resume: Path | None = None
    override_order: str | None = None
    explore: bool = False
    """Whether a full run begins before its micro gates are green, and is never green itself."""
    archives: Sequence[Path] = ()
    """Folders that run folders of the ledger were moved to."""
    reports: bool = True
    """False: the run folder gets its data, verdicts and manifest, but no page or table for readers."""
    isolate: bool = False
    """Whether engines run in a sandbox (`specgate.sandbox`)."""

    @property
    def longer(self) -> bool:
        """True if a run is to be continued with more rounds or more time than it had."""
        return self.measurement_runs is not None or self.budget is not None

"""The head of report.html: what a reviewer decides from, before anything else on the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.contract import CellResult, Kind, Policy, Run, Verdict
from specgate.errors import ExitCode
from specgate.reports.common import figures, provenance, summary
from specgate.reports.common.parts import Entry, Table
from specgate.reports.common.tables import QUIET, speedup_entry, tokens_entry

SHOWN: Final = 6
"""Most cells in the head: as many as leave the reasons below it on the first screen."""
ByCell = Mapping[str, Sequence[Verdict]]
"""Cell key → the verdicts on that cell."""


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def key_figures(run: Run) -> Table:
    """Speed-up, acceptance length and tokens of spec cells, with what is asked of them.

    The gravest come first. Cells whose speed and acceptance a rule asks for leave no room for others. At most SHOWN.
    """
    head = ("cell", "speed-up", "asked", "acceptance length", "asked", "tokens")
    verdicts = by_cell(run)
    return Table(head, [key_row(run, result, verdicts) for result in chosen(run)])


def chosen(run: Run) -> list[CellResult]:
    """The spec cells that somebody has to decide on; without any, the first ones."""
    spec, verdicts = [r for r in run.cells if r.cell.role.speculative], by_cell(run)
    judged = [r for r in spec if verdicts_on(verdicts, r, "speed", "acceptance")] or spec
    judged.sort(key=lambda r: summary.gravity(verdicts_on(verdicts, r, "speed", "acceptance", "tokens")))
    return judged[:SHOWN]


def key_row(run: Run, result: CellResult, verdicts: ByCell) -> list[str | Entry]:
    comparison, length = run.comparison(result.cell.key), result.values.get("acceptance_length")
    return [
        cell_name(result.cell.key, run.scenarios),
        speedup_entry(comparison.speedup if comparison else None),
        asked(verdicts_on(verdicts, result, "speed")),
        Entry(figures.figure(length), figures.reason(length) or figures.span(length)),
        asked(verdicts_on(verdicts, result, "acceptance")),
        tokens_entry(run, comparison),
    ]


def by_cell(run: Run) -> ByCell:
    found: dict[str, list[Verdict]] = {}
    for verdict in run.verdicts:
        for cell in (verdict.cell, *verdict.covers):
            found.setdefault(cell, []).append(verdict)
    return found


def verdicts_on(verdicts: ByCell, result: CellResult, *kinds: Kind) -> list[Verdict]:
    """Return the verdicts of these kinds on a cell."""
    return [v for v in verdicts.get(result.cell.key, ()) if not set(kinds).isdisjoint(v.judges)]


def asked(verdicts: Sequence[Verdict]) -> Entry:
    """What is asked of a figure, marked with the gravest verdict on it, among the required ones if there are any."""
    if not verdicts:
        return Entry("not judged")
    decisive = min(verdicts, key=lambda v: (not v.required, summary.gravity([v])))
    text = decisive.floor.text if decisive.floor else decisive.rule
    return Entry(text, None if decisive.required else "advises", decisive.state.value, not decisive.required)


# ── what else to know ────────────────────────────────────────────────────────────────────────────────────────────────


def next_step(run: Run) -> str | None:
    """What to do next; None for a run that is good. What a good run's rules advise is in `advice`."""
    found = summary.headline(run)
    return None if found.code is ExitCode.PASS else found.advice


@dataclass(frozen=True, slots=True)
class Advice:
    """Advisory verdicts of one rule in one state. `first`: the index of the first of them in `Run.verdicts`."""

    rule: str
    state: str
    cells: int
    first: int
    message: str


def advice(run: Run) -> list[Advice]:
    """What advisory rules ask for. It is beside the verdict, and must not be overlooked behind a PASS."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, v in enumerate(run.verdicts):
        if not v.required and v.state not in QUIET:
            found.setdefault((v.rule, v.state.value), []).append(number)
    return [
        Advice(rule, state, len(numbers), numbers[0], run.verdicts[numbers[0]].message)
        for (rule, state), numbers in found.items()
    ]


# ── facts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def facts(run: Run, policy: Policy) -> list[tuple[str, str]]:
    """(name, value): what the verdict rests on first, then what ran, where and when."""
    rows = [("policy", policy.name), ("commit", provenance.commit(run)), ("device", provenance.device(run))]
    if found := provenance.driver(run):
        rows.append(("driver", found))
    if engine := next(iter(run.engines.values()), None):
        rows += [("back end", engine.backend), ("dtype", engine.dtype)]
    rows += [*provenance.engine(run), ("pair", provenance.pair(run))]
    rows += [("started", run.started.replace("T", " ").replace("+00:00", " UTC")), ("status", run.status)]
    if took := summary.duration(run):
        rows.append(("took", took))
    return [*rows, ("specgate", run.tool_version), ("run", run.id)]


def command(run: Run) -> list[str]:
    """The command that made the run, word by word, each quoted for a POSIX shell. A page breaks lines between them."""
    return [shlex.quote(word) for word in run.argv]

"""The head of report.html: what a reviewer decides from, before anything else on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.grouping import collected
from specgate.analysis.intervals.decision import interval
from specgate.analysis.intervals.other_prompts import LIKE_THESE, THESE
from specgate.analysis.references import between_two_runs, paired_by_round
from specgate.analysis.stats import ALPHA
from specgate.contract import CellResult, Kind, Policy, Run, Verdict
from specgate.errors import ExitCode
from specgate.reports.common import figures, provenance, summary
from specgate.reports.common.parts import Entry, Table, dense
from specgate.reports.common.tables import speedup_entry, tokens_entry

SHOWN: Final = 6
"""Most cells in the head: as many as leave the reasons below it on the first screen."""
ByCell = Mapping[str, Sequence[Verdict]]
"""Cell key → the verdicts on that cell."""


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def key_figures(run: Run) -> Table:
    """Return speed-up, acceptance length and tokens of spec cells, with what is asked of them.

    The gravest come first. Cells whose speed and acceptance a rule asks for leave no room for others. At most SHOWN.
    """
    verdicts = by_cell(run)
    speedup = f"speed-up\n95\u00a0% {THESE}"
    length = f"acceptance length\n95\u00a0% {LIKE_THESE}"
    head = ("cell", speedup, "asked", length, "asked", "tokens")
    return dense(Table(head, [key_row(run, result, verdicts) for result in chosen(run)]))


def chosen(run: Run) -> list[CellResult]:
    """Return the spec cells that somebody has to decide on; without any, the first ones."""
    spec, verdicts = [r for r in run.cells if r.cell.role.speculative], by_cell(run)
    judged = [r for r in spec if verdicts_on(verdicts, r, "speed", "acceptance")] or spec
    judged.sort(key=lambda r: summary.gravity(verdicts_on(verdicts, r, "speed", "acceptance", "tokens")))
    return judged[:SHOWN]


def key_row(run: Run, result: CellResult, verdicts: ByCell) -> list[str | Entry]:
    comparison, length = run.comparison(result.cell.key), result.values.get("acceptance_length")
    return [
        cell_name(result.cell.key, run.scenarios),
        speedup_entry(comparison.speedup if comparison else None, figures.others(run, comparison)),
        demand(result, verdicts_on(verdicts, result, "speed")),
        Entry(figures.figure(length), figures.reason(length) or figures.span(length)),
        demand(result, verdicts_on(verdicts, result, "acceptance")),
        tokens_entry(run, comparison),
    ]


def by_cell(run: Run) -> ByCell:
    return collected((cell, verdict) for verdict in run.verdicts for cell in (verdict.cell, *verdict.covers))


def verdicts_on(verdicts: ByCell, result: CellResult, *kinds: Kind) -> list[Verdict]:
    """Return the verdicts of these kinds on a cell."""
    return [v for v in verdicts.get(result.cell.key, ()) if not set(kinds).isdisjoint(v.judges)]


def demand(result: CellResult, verdicts: Sequence[Verdict]) -> Entry:
    """Return the demand on a figure, marked with the gravest verdict on it, among the required ones if there are any.

    A verdict on a whole sweep marks the level that it was made for. Levels beyond the demand have none.
    """
    if not verdicts:
        return Entry("not judged")
    decisive = min(verdicts, key=lambda v: (not v.required, summary.gravity([v])))
    text = decisive.floor.text if decisive.floor else decisive.rule
    if decisive.cell != result.cell.key:
        beyond = decisive.floor is not None and result.cell.point.level > decisive.floor.least
        return Entry("not asked" if beyond else text)
    return Entry(text, None if decisive.required else "advises", decisive.state.value, not decisive.required)


# ── what else to know ────────────────────────────────────────────────────────────────────────────────────────────────


def next_step(run: Run) -> str | None:
    """Return the next step; None for a green run, whose advisory verdicts are in `advice`."""
    headline = summary.headline(run)
    return None if headline.code is ExitCode.PASS else headline.advice


@dataclass(frozen=True, slots=True)
class Advice:
    """Advisory verdicts of one rule in one state. `first`: the index of the first of them in `Run.verdicts`."""

    rule: str
    state: str
    cells: int
    first: int
    message: str


def advice(run: Run) -> list[Advice]:
    """Return the advisory verdicts that ask for something, so that no PASS hides them."""
    open_ = ((n, v) for n, v in enumerate(run.verdicts) if v.state not in summary.QUIET)
    wanting = ((n, v) for n, v in open_ if not v.required and not summary.repeats_the_end(run, v))
    alike = collected(((v.rule, v.state.value), number) for number, v in wanting)
    return [
        Advice(rule, state, len(numbers), numbers[0], run.verdicts[numbers[0]].message)
        for (rule, state), numbers in alike.items()
    ]


# ── facts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def facts(run: Run, policy: Policy) -> list[tuple[str, str]]:
    """Return (name, value) of what a reviewer asks first: whose code and which machine, when, and what has changed."""
    own = next((engine.backend for engine in run.engines.values()), None)
    rows = [("policy", policy.name), ("engine", provenance.engine_name(run) or own), ("commit", provenance.commit(run))]
    rows += [*provenance.machines(run), ("pair", provenance.pair(run))]
    rows += [("started", run.started.replace("T", " ").replace("+00:00", " UTC")), ("took", summary.duration(run))]
    rows += [("since the last green run", since(run))]
    return [(name, value) for name, value in rows if value and value != figures.NONE]


def since(run: Run) -> str | None:
    """Return the change of the step time against the earlier run that this one is held against; if it has no such run,
    the last green run. None without either.
    """
    changes = [change for result in chosen(run) if (change := change_of(run, result))]
    if changes or run.earlier is not None or run.last_green is None:
        return "; ".join(changes) or None
    facts = run.last_green.differences
    differ = "" if facts is None else f": {figures.counted(len(facts), 'fact differs', 'facts differ')}"
    return f"{run.last_green.run}{differ}"


def change_of(run: Run, result: CellResult) -> str | None:
    """Return the change of a cell's step time in percent with its 95 % interval, and the earlier run."""
    cell, earlier = result.cell, run.earlier.runs.get(result.cell.point.scenario) if run.earlier else None
    old, new = earlier.cells.get(cell.key) if earlier else None, run.times.get(cell.key)
    if earlier is None or old is None or new is None:
        return None
    known = (spread for key, spread in run.between_runs.items() if key.startswith(f"{cell.point.key}/"))
    span = interval(paired_by_round(old, new, "step_ns"), between_two_runs(known), of_processes=(ALPHA, ALPHA))
    if span is None:
        return None
    mean, low, high = (round(100 * math.expm1(-log), 2) + 0.0 for log in (span.mean, span.high, span.low))
    seen = "no change seen, " if low <= 0 <= high else ""
    span_ = f"{mean:+.2f} % (95 % {low:+.2f} to {high:+.2f})".replace("-", "−")
    return f"{cell.role_name} step time: {seen}{span_}, against {earlier.run}"

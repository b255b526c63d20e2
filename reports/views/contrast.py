"""The view `compare`, for `specgate compare`: what differs between two runs, the verdicts, and every figure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from specgate.analysis.verdict import overall_of_contrast
from specgate.core import Cell, Run, State, Value
from specgate.core.contrast import Change, Contrast, How, TokenContrast
from specgate.core.metrics import metric
from specgate.errors import ExitCode
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table
from specgate.reports.common.summary import about, label, short, worst
from specgate.reports.sheets.sheet import Ending, Section, Sheet
from specgate.reports.sheets.view import SheetView
from specgate.reports.texts.csv import Row
from specgate.reports.texts.csv import worst as gravest
from specgate.reports.views.differences import Difference, differences

_HASH = re.compile(r"[0-9a-f]{40,}")
UNPAIRED = (
    "Unpaired in time: A and B were measured one after the other, so whatever changed in between is in their times "
    "and in no interval."
)
MEDIANS = (
    "A and B are each run's own figures (see metrics.csv for the statistic), B / A the geometric mean over pairs of "
    "blocks: where blocks scatter, these part."
)
COLUMNS = (
    *("run_a", "run_b", "kind", "scenario", "backend_a", "backend_b", "role", "context_len", "batch", "k"),
    *("metric", "unit", "direction", "how", "a", "b", "ratio", "ci_low", "ci_high", "n"),
    *("acceptance_a", "acceptance_b", "verdict", "reason_code"),
)


def sheet(contrast: Contrast) -> Sheet:
    """The page: runs, what differs, verdicts, the figures of each cell, tokens, and cells that only one run has."""
    a, b = contrast.a, contrast.b
    found = differences(contrast)
    return Sheet(
        title="Run B against run A",
        subtitle=f"A: {a.id} · B: {b.id}",
        ending=ending(contrast),
        banners=list(banners(contrast)),
        sections=[
            sides(contrast),
            Section("What differs", difference_table(found), None if found else "Nothing that is recorded."),
            Section("Verdicts", verdicts(contrast), None if contrast.verdicts else "Nothing was judged."),
            *(changes(contrast, cell) for cell in contrast.cells),
            Section("Tokens", tokens(contrast.tokens)),
            *alone(contrast),
        ],
    )


def ending(contrast: Contrast) -> Ending:
    """The state, exit code and reason of the comparison as a whole."""
    state, code = overall_of_contrast(contrast)
    if code is ExitCode.BACKEND_ERROR:
        return Ending(code.name, code, next(cut_short(contrast)))
    culprit = worst(contrast.verdicts)
    if culprit is not None:
        return Ending(state.value, code, f"{about(culprit)}: {culprit.message}")
    green = sum(v.required and v.state in (State.PASS, State.IMPROVED) for v in contrast.verdicts)
    words = f"All {green} required verdicts are green." if green else "No required gate judged anything."
    return Ending(state.value, code, words)


def banners(contrast: Contrast) -> Iterator[str]:
    """What must be known to read the figures."""
    if any(c.how is How.UNPAIRED and c.ratio is not None for c in contrast.changes):
        yield UNPAIRED
    a, b = contrast.a, contrast.b
    if {a.acceptance, b.acceptance} != {"real"}:
        yield (
            f"Acceptance is {a.acceptance} in both."
            if a.acceptance == b.acceptance
            else f"Acceptance is {a.acceptance} in A, {b.acceptance} in B: lengths are not compared."
        )
    yield from cut_short(contrast)
    if definitions(a) != definitions(b):
        yield (
            "The figures of one run follow the definitions until schema 1.3, those of the other the field's: figures "
            "of only one of them have no ratio."
        )
    if any(t.reason_code == "prompts_differ" for t in contrast.tokens):
        yield "The prompts differ: acceptance and tokens depend on them, and neither can be paired."


def definitions(run: Run) -> set[int]:
    """Which definitions the figures of a run follow (`core.metrics`)."""
    return {scenario.definitions for scenario in run.scenarios.values()}


def cut_short(contrast: Contrast) -> Iterator[str]:
    """Why a run has missing blocks, a sentence per failure."""
    for name, run in (("A", contrast.a), ("B", contrast.b)):
        for where, why in run.failures.items():
            yield f"{name} was cut short ({where}): {why.splitlines()[0]}"


def sides(contrast: Contrast) -> Section:
    rows = [
        [name, run.id, engine_of(run), run.started.replace("T", " ").replace("+00:00", " UTC"), run.status]
        for name, run in (("A", contrast.a), ("B", contrast.b))
    ]
    return Section("Runs", Table(("side", "run", "engine", "started", "status"), rows, texts=5))


def engine_of(run: Run) -> str:
    engine = next(iter(run.engines.values()), None)
    return f"{engine.backend}, {engine.device}, {engine.dtype}" if engine else "none was loaded"


def difference_table(found: Sequence[Difference]) -> Table:
    return Table(("of", "what", "A", "B"), [[d.group, d.key, cut(d.a), cut(d.b)] for d in found], texts=4)


def cut(text: str) -> str:
    """`text`, shortened: the first 12 digits of a hash, or the first 48 characters of anything else."""
    length = 12 if _HASH.fullmatch(text) else 48
    return (text if len(text) <= length else f"{text[:length]}…") or figures.NONE


def verdicts(contrast: Contrast) -> Table:
    rows = [
        [
            v.state.value if v.required else Entry(v.state.value, "advisory"),
            v.rule,
            short(v.cell) if v.cell else figures.NONE,
            Entry(v.message, f"next: {v.next_step}" if v.next_step else None),
        ]
        for v in contrast.verdicts
    ]
    return Table(("verdict", "rule", "cell", "because"), rows, texts=4)


def changes(contrast: Contrast, cell: Cell) -> Section:
    rows = [change_row(c) for c in contrast.changes if c.cell == cell]
    head = ("figure", "A", "B", "B / A", "95 % interval", "rests on")
    return Section(label(cell), Table(head, rows), MEDIANS if rows else "Neither run has a figure of this cell.")


def change_row(change: Change) -> list[str | Entry]:
    span = interval(change)
    return [
        change.metric,
        shown(change.metric, change.a),
        shown(change.metric, change.b),
        figures.NONE if change.ratio is None else f"{change.ratio:.3f}×",
        Entry(span, f"n = {change.n}") if span else Entry(figures.NONE, (change.reason_code or "").replace("_", " ")),
        change.how.value,
    ]


def interval(change: Change) -> str | None:
    if change.ci_low is None or change.ci_high is None:
        return None
    return f"{change.ci_low:.3f}–{change.ci_high:.3f}"


def shown(name: str, value: float | None) -> str:
    return figures.figure(Value(name, value))


def tokens(found: Sequence[TokenContrast]) -> Table:
    rows = [
        [
            label(t.cell),
            "not compared" if t.reason_code else f"{t.differing} differ" if t.differing else "all the same",
            f"{t.compared_tokens:,}",
            str(t.sequences),
            figures.NONE if t.first is None else str(t.first),
            (t.reason_code or "").replace("_", " ") or figures.NONE,
        ]
        for t in found
    ]
    return Table(("cell", "sequences of B", "tokens", "sequences", "first at", "why not"), rows, texts=2)


def alone(contrast: Contrast) -> Iterator[Section]:
    """The cells that only one of the two runs has."""
    rows = [[name, label(c)] for name, cells in (("A", contrast.only_a), ("B", contrast.only_b)) for c in cells]
    if rows:
        yield Section("Cells without a partner", Table(("only in", "cell"), rows, texts=2))


def rows(contrast: Contrast) -> Iterator[Row]:
    """The rows of compare.csv: one per cell and figure."""
    for change in contrast.changes:
        point = change.cell.point
        about_it = (v for v in contrast.verdicts if v.cell == change.cell.key)
        verdict = gravest(v for v in about_it if v.evidence.get("metric") == change.metric)
        yield {
            "run_a": contrast.a.id,
            "run_b": contrast.b.id,
            "kind": contrast.a.kind,
            "scenario": point.scenario,
            "backend_a": point.backend,
            "backend_b": change.partner.point.backend,
            "role": change.cell.role.name,
            "context_len": point.context,
            "batch": point.batch,
            "k": change.cell.role.k,
            "metric": change.metric,
            "unit": metric(change.metric).unit,
            "direction": metric(change.metric).direction,
            "how": change.how.value,
            "a": change.a,
            "b": change.b,
            "ratio": change.ratio,
            "ci_low": change.ci_low,
            "ci_high": change.ci_high,
            "n": change.n,
            "acceptance_a": contrast.a.acceptance,
            "acceptance_b": contrast.b.acceptance,
            "verdict": verdict.state.value if verdict else None,
            "reason_code": change.reason_code,
        }


VIEW = SheetView("compare", sheet, rows, COLUMNS)

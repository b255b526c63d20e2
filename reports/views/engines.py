"""Engines side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specgate.analysis.rows import Row, identity
from specgate.contract import Cell, Value
from specgate.contract.comparisons import Column, Matrix
from specgate.contract.comparisons import Entry as MatrixEntry
from specgate.contract.comparisons import Row as MatrixRow
from specgate.contract.metrics import metric
from specgate.reports.common import figures, provenance
from specgate.reports.common.parts import Entry, Table
from specgate.reports.common.tables import speedup_entry, tokens_entry
from specgate.reports.sheets.formats import SheetView, Tables
from specgate.reports.sheets.sheet import Section, Sheet
from specgate.reports.texts.csv import summary_row

ENGINE_TABLE_HEAD = ("engine", "version", "device", "dtype", "capture layers", "acceptance", "commit", "run")


def engine_table(columns: Sequence[Column]) -> Table:
    rows = [
        [str(value or figures.NONE) for value in list(facts(c).values())[: len(ENGINE_TABLE_HEAD)]] for c in columns
    ]
    return Table(ENGINE_TABLE_HEAD, rows, texts=len(ENGINE_TABLE_HEAD))


def facts(column: Column) -> dict[str, object]:
    """Return the facts of an engine: first the columns of the table, then what only files have."""
    engine, run = column.engine, column.run
    return {
        "engine": column.label,
        "version": engine.engine_version or engine.details.get(f"{engine.backend} version") if engine else None,
        "device": engine.device if engine else None,
        "dtype": engine.dtype if engine else None,
        "capture_rule": engine.capture_rule if engine else None,
        "acceptance_source": run.acceptance,
        "commit": provenance.commit(run),
        "run_id": run.id,
        "target_sha256": engine.target_sha256 if engine else None,
        "draft_sha256": engine.draft_sha256 if engine else None,
        "warnings": list(column.warnings),
        "cut_short": column.cut_short,
    }


HEAD = ("scenario", "context", "batch", "role")
MARKS_SAID = (
    "★ best of a row, where two or more of its figures may be compared. ▼ slower than its own baseline: the whole 95 % "
    "interval lies below 1."
)
Shown = tuple[Entry, Value | None]
"""What is shown of an entry, and the value in it that may be the best of its row."""
UNPAIRED = "Unpaired in time: measured one after the other. Only a speed-up is paired, with its own baseline."


def sheet(matrix: Matrix) -> Sheet:
    """The page: the columns first, then a table per figure."""
    return Sheet(
        title="Engines side by side",
        subtitle=f"{len(matrix.rows)} cells on {', '.join(c.label for c in matrix.columns)}",
        ending=None,
        banners=list(banners(matrix)),
        sections=[
            Section("Speed-up over the own baseline", table(matrix, speedup, speculative=True), MARKS_SAID),
            Section(
                "Acceptance length",
                table(matrix, acceptance, speculative=True),
                "Counted alike for every back end: 1 + accepted / cycles, bonus token included, prefill token apart.",
            ),
            Section("Output tokens per second", table(matrix, lambda _, e: of(e, *figures.SPEED)), UNPAIRED),
            Section("Milliseconds per token", table(matrix, lambda _, e: of(e, *figures.PER_TOKEN))),
            Section("Tokens against the own baseline", table(matrix, tokens, speculative=True)),
            Section("Engines", engine_table(matrix.columns)),
        ],
    )


def banners(matrix: Matrix) -> Iterator[str]:
    """Yield warnings that a reader of the figures needs."""
    held_back = sum(e.why_not is not None for row in matrix.rows for e in row.entries)
    if held_back:
        yield f"{held_back} entries cannot be held beside the others of their row: each says why."
    if any(len(row.sources) > 1 for row in matrix.rows if row.cell.role.speculative):
        yield "Acceptance comes from different sources: figures of one source may be compared, those of two may not."


def table(matrix: Matrix, shown: Callable[[Column, MatrixEntry], Shown], *, speculative: bool = False) -> Table:
    rows: list[list[str | Entry]] = [
        [*place_of(row.cell), *entries(matrix, row, shown)]
        for row in matrix.rows
        if row.cell.role.speculative or not speculative
    ]
    return Table((*HEAD, *(c.label for c in matrix.columns)), rows, texts=len(HEAD))


def place_of(cell: Cell) -> list[str]:
    """The first entries of a row. In the place of the batch, an open loop has its requests per second."""
    point = cell.point
    level = str(point.batch) if point.rate is None else f"{point.rate:g}/s"
    return [point.unvaried, f"{point.context:,}", level, cell.role_name]


def entries(matrix: Matrix, row: MatrixRow, shown: Callable[[Column, MatrixEntry], Shown]) -> Iterator[Entry]:
    columns = [
        (Entry(figures.NONE, entry.why_not), None) if entry.why_not is not None else shown(column, entry)
        for column, entry in zip(matrix.columns, row.entries, strict=True)
    ]
    alike = len(row.sources) == 1 or not row.cell.role.speculative
    best = best_of([value for _, value in columns if value is not None]) if alike else None
    for (made, value), entry in zip(columns, row.entries, strict=True):
        with_source = labelled(made, entry) if row.cell.role.speculative and entry.why_not is None else made
        yield marked_best(with_source, value, best)


def best_of(values: Sequence[Value]) -> str | None:
    """The best of `values` as it is shown; None where there are not two that differ in what is shown, or where they are
    not of one metric.
    """
    shown = {figures.figure(v) for v in values}
    if len(shown) < 2 or len({v.metric for v in values}) > 1:
        return None
    pick = max if metric(values[0].metric).direction == "higher" else min
    return figures.figure(pick(values, key=lambda v: v.value or 0.0))


def marked_best(made: Entry, value: Value | None, best: str | None) -> Entry:
    """`made`, marked if it shows the best figure of its row. What is slower than its baseline keeps that mark."""
    if value is None or best is None or made.text != best or made.mark:
        return made
    return Entry(made.text, f"{made.note}\nbest of the row" if made.note else "best of the row", "best")


def labelled(shown: Entry, entry: MatrixEntry) -> Entry:
    """`shown`, marked with the source of acceptance unless that is a trained pair: the figure depends on it."""
    if entry.acceptance == "real":
        return shown
    note = f"{shown.note}, {entry.acceptance}" if shown.note else entry.acceptance
    return replace(shown, note=note)


def of(entry: MatrixEntry, *names: str) -> Shown:
    """The first of these figures that the entry has."""
    value = figures.first(entry.result, *names) if entry.result else None
    return Entry(figures.figure(value), figures.reason(value) or figures.span(value)), usable(value)


def usable(value: Value | None) -> Value | None:
    return None if value is None or value.value is None else value


def acceptance(column: Column, entry: MatrixEntry) -> Shown:
    return of(entry, "acceptance_length")


def speedup(column: Column, entry: MatrixEntry) -> Shown:
    value = entry.comparison.speedup if entry.comparison else None
    return speedup_entry(value), usable(value)


def tokens(column: Column, entry: MatrixEntry) -> Shown:
    return tokens_entry(column.run, entry.comparison), None


def rows(matrix: Matrix) -> Iterator[Row]:
    """Yield a row per cell and back end: what was measured, and whether it may be compared."""
    for row in matrix.rows:
        for column, entry in zip(matrix.columns, row.entries, strict=True):
            run, result = column.run, entry.result
            key = result.cell.point.key if result else ""
            engine, prompts = run.engines.get(key), run.prompts.get(key, {}).get("sha256")
            yield {
                **(summary_row(run, result) if result else identity(run, row.cell)),
                "backend": column.backend,
                "device": engine.device if engine else None,
                "dtype": engine.dtype if engine else None,
                "prompts_sha256": str(prompts) if prompts else None,
                "comparable": "no" if entry.why_not else "yes",
                "why_not": entry.why_not,
            }


def tables(matrix: Matrix) -> Tables:
    """Return every cell, then the engines."""
    return {"cells": rows(matrix), "engines": map(facts, matrix.columns)}


VIEW = SheetView("engines", sheet, tables)

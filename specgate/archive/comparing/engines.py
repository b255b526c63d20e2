"""Engines side by side, cell by cell.

Acceptance and emitted tokens are the harness's own figures for every engine. Acceptance is counted from the accepted
draft tokens of every step; it includes the bonus token and excludes the prefill token. Every entry of a row is checked
against the first column that has the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specgate.analysis.grouping import grouped
from specgate.contract import Block, Cell, CellResult, Point, Run, Scenario
from specgate.contract.comparisons import Column, Entry, Matrix, Row
from specgate.contract.load import Load
from specgate.errors import UsageError


def by_cell(blocks: Sequence[Block]) -> dict[Cell, list[Block]]:
    """Return the blocks of each cell, point after point, the roles of a point by their draft lengths."""
    of = grouped(blocks, lambda block: block.cell)
    points = list(dict.fromkeys(cell.point for cell in of))
    return {cell: of[cell] for cell in sorted(of, key=lambda cell: (points.index(cell.point), cell.role.k))}


def columns_of(runs: Sequence[Run]) -> Iterator[Column]:
    """Yield one column per run and back end."""
    measured = [(backend, run) for run in runs for backend in backends_of(run)]
    names = [backend for backend, _ in measured]
    for backend, run in measured:
        yield Column(backend, run, backend if names.count(backend) == 1 else f"{backend} {run.id.rpartition('-')[2]}")


def backends_of(run: Run) -> list[str]:
    """Return the back ends that the cells of a run were measured on."""
    return list(dict.fromkeys(result.cell.point.backend for result in run.cells))


def prompts_sha256(run: Run, point: Point) -> str | None:
    """Return the SHA-256 of the prompts of a point; None if the run does not state it."""
    digest = run.prompts.get(point.key, {}).get("sha256")
    return None if digest is None else str(digest)


def same_prompts(a: Run, at_a: Point, b: Run, at_b: Point) -> bool:
    """Tell whether both runs state the same prompts for the point."""
    digest = prompts_sha256(a, at_a)
    return digest is not None and digest == prompts_sha256(b, at_b)


def target_of(run: Run, point: Point) -> str | None:
    """Return the SHA-256 of the target weights that measured a point, or what a server says that it serves.

    None if no engine was loaded for it.
    """
    engine = run.engines.get(point.key)
    return engine.target if engine else None


def matrix_of(runs: Sequence[Run]) -> Matrix:
    """Put the cells of `runs` side by side. Raises UsageError where no run has a cell."""
    columns = tuple(columns_of(runs))
    if not columns:
        raise UsageError("no run has a cell: nothing to put side by side")
    results = [
        {r.cell.anywhere: r for r in column.run.cells if r.cell.point.backend == column.backend} for column in columns
    ]
    rows = dict.fromkeys(r.cell.anywhere for column in columns for r in column.run.cells)
    return Matrix(columns, tuple(row_of(columns, cell, [of.get(cell) for of in results]) for cell in rows))


def row_of(columns: Sequence[Column], cell: Cell, results: Sequence[CellResult | None]) -> Row:
    """Return the row of `cell`. `results`: its result in each column; at least one is there."""
    pairs = list(zip(columns, results, strict=True))
    first = next((column.run, result.cell) for column, result in pairs if result is not None)
    entries = [
        Entry(
            column.run.acceptance,
            result,
            column.run.comparison(result.cell.key) if result else None,
            why_not(column.run, result, *first),
        )
        for column, result in pairs
    ]
    return Row(cell, tuple(entries))


def why_not(run: Run, result: CellResult | None, reference: Run, reference_cell: Cell) -> str | None:
    """Return why `result` may not be compared with the reference cell of the reference run; None where it may."""
    if result is None:
        return "not in its plan"
    if result.status == "failed":
        return "no figures: " + (result.reason or "nothing was measured").splitlines()[0]
    point = result.cell.point
    if otherwise := differing_settings(run.scenarios[point.scenario], reference.scenarios[point.scenario]):
        return f"asked otherwise: {', '.join(otherwise)}"
    if not same_prompts(run, point, reference, reference_cell.point):
        mine, theirs = prompts_sha256(run, point), prompts_sha256(reference, reference_cell.point)
        return f"other prompts: {str(mine)[:8]}, not {str(theirs)[:8]}"
    return None


def differing_settings(a: Scenario, b: Scenario) -> list[str]:
    """Return the settings that a figure depends on and in which two scenarios of one name differ."""
    named = [
        f
        for f in ("kind", "pair", "dtype", "budget", "rope", "sampling", "perf_mode")
        if getattr(a, f) != getattr(b, f)
    ]
    return [*named, "load"] if at_a_level(a) != at_a_level(b) else named


def at_a_level(scenario: Scenario) -> Load | None:
    """How requests come at any level of a load scenario, whichever levels it has."""
    return replace(scenario.load, rates=(), search=None) if scenario.load else None

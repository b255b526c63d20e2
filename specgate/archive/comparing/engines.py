"""Put the same cells of several runs side by side, and say why some of them must not be compared.

Acceptance and emitted tokens are the harness's own figures for every engine. Acceptance is counted from the accepted
draft tokens of every step; it includes the bonus token and excludes the prefill token. Every entry of a row is checked
against the first column that has the cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgate.archive.comparing.cells import cell_id, columns_of, prompts_sha256, same_prompts
from specgate.contract import Cell, CellResult, Run, Scenario
from specgate.contract.matrix import Column, Entry, Matrix, Row
from specgate.errors import UsageError


def matrix_of(runs: Sequence[Run]) -> Matrix:
    """Put the cells of `runs` side by side. Raises UsageError where no run has a cell."""
    columns = tuple(columns_of(runs))
    if not columns:
        raise UsageError("no run has a cell: nothing to put side by side")
    results = [
        {cell_id(r.cell): r for r in column.run.cells if r.cell.point.backend == column.backend} for column in columns
    ]
    rows = {cell_id(r.cell): r.cell for column in columns for r in column.run.cells}
    return Matrix(columns, tuple(row_of(columns, cell, [of.get(key) for of in results]) for key, cell in rows.items()))


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
    return Row(cell.point.scenario, cell.point.context, cell.point.batch, cell.role, tuple(entries))


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
    return [f for f in ("kind", "pair", "dtype", "budget", "rope", "perf_mode") if getattr(a, f) != getattr(b, f)]

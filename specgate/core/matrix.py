"""The bench matrix: the same cells on several back ends, side by side, and why some are not to be compared.

Acceptance is the harness's own: counted from the accept counts of every step, bonus token included, prefill token
apart, whichever engine they come from; and so are emitted tokens. What a column's entry is held to is the first
column that has the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specgate.core import AcceptanceSource, Cell, CellResult, Comparison, Role, Run, Scenario
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Column:
    """A back end as one run has measured it. `label` is its name, with the run's where that is not enough."""

    backend: str
    run: Run
    label: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell on one back end; `why_not` says why it may not be held beside the others of its row."""

    acceptance: AcceptanceSource
    result: CellResult | None
    comparison: Comparison | None
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """Scenario × context × batch × role, with an entry per column."""

    scenario: str
    context: int
    batch: int
    role: Role
    entries: tuple[Entry, ...]

    @property
    def sources(self) -> list[AcceptanceSource]:
        """Where the acceptance of the entries that may be compared comes from, each source once."""
        return list(dict.fromkeys(e.acceptance for e in self.entries if e.why_not is None))


@dataclass(frozen=True, slots=True)
class Matrix:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def matrix_of(runs: Sequence[Run]) -> Matrix:
    """Raises UsageError where no run has a cell."""
    columns = tuple(columns_of(runs))
    if not columns:
        raise UsageError("no run has a cell: nothing to put side by side")
    rows = dict.fromkeys(asked(c.cell) for column in columns for c in column.run.cells)
    return Matrix(columns, tuple(row_of(columns, *row) for row in rows))


def columns_of(runs: Sequence[Run]) -> Iterator[Column]:
    measured = [(backend, run) for run in runs for backend in dict.fromkeys(c.cell.point.backend for c in run.cells)]
    names = [backend for backend, _ in measured]
    for backend, run in measured:
        yield Column(backend, run, backend if names.count(backend) == 1 else f"{backend} {run.id.rpartition('-')[2]}")


def asked(cell: Cell) -> tuple[str, int, int, Role]:
    return cell.point.scenario, cell.point.context, cell.point.batch, cell.role


def row_of(columns: Sequence[Column], scenario: str, context: int, batch: int, role: Role) -> Row:
    row = (scenario, context, batch, role)
    cells = [next((c for c in column.run.cells if of_row(c.cell, column, row)), None) for column in columns]
    first = next((column.run, c.cell) for column, c in zip(columns, cells, strict=True) if c is not None)
    entries = [
        Entry(
            column.run.acceptance,
            result,
            column.run.comparison(result.cell.key) if result else None,
            why_not(column.run, result, *first),
        )
        for column, result in zip(columns, cells, strict=True)
    ]
    return Row(scenario, context, batch, role, tuple(entries))


def of_row(cell: Cell, column: Column, row: tuple[str, int, int, Role]) -> bool:
    return cell.point.backend == column.backend and asked(cell) == row


def why_not(run: Run, result: CellResult | None, reference: Run, reference_cell: Cell) -> str | None:
    if result is None:
        return "not in its plan"
    if result.status == "failed":
        return "no figures: " + (result.reason or "nothing was measured").splitlines()[0]
    name = result.cell.point.scenario
    if otherwise := asked_otherwise(run.scenarios[name], reference.scenarios[name]):
        return f"asked otherwise: {', '.join(otherwise)}"
    mine, theirs = (
        of.prompts.get(cell.point.key, {}).get("sha256")
        for of, cell in ((run, result.cell), (reference, reference_cell))
    )
    if mine is None or mine != theirs:
        return f"other prompts: {str(mine)[:8]}, not {str(theirs)[:8]}"
    return None


def asked_otherwise(a: Scenario, b: Scenario) -> list[str]:
    """In what two scenarios of one name differ, of what a figure depends on."""
    return [f for f in ("kind", "pair", "dtype", "budget", "rope", "perf_mode") if getattr(a, f) != getattr(b, f)]

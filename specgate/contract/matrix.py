"""The bench matrix: the same cells on several back ends side by side, and why some of them must not be compared.

Acceptance and emitted tokens are the harness's own figures for every engine. Acceptance is counted from the accepted
draft tokens of every step; it includes the bonus token and excludes the prefill token. Every entry of a row is checked
against the first column that has the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specgate.contract import AcceptanceSource, Cell, CellResult, Comparison, Point, Role, Run, Scenario
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Column:
    """One back end as measured by one run. `label` is its name, with the run's added where several columns have that
    name.
    """

    backend: str
    run: Run
    label: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell on one back end. `why_not` says why it may not be compared with the others of its row."""

    acceptance: AcceptanceSource
    result: CellResult | None
    comparison: Comparison | None
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """Scenario × context × batch × role, with one entry per column."""

    scenario: str
    context: int
    batch: int
    role: Role
    entries: tuple[Entry, ...]

    @property
    def unvaried(self) -> str:
        """As in `Point`."""
        return self._cell.point.unvaried

    @property
    def role_name(self) -> str:
        """As in `Cell`."""
        return self._cell.role_name

    @property
    def _cell(self) -> Cell:
        return Cell(Point(self.scenario, "", self.context, self.batch), self.role)

    @property
    def sources(self) -> list[AcceptanceSource]:
        """Where the acceptance of the comparable entries comes from, each source once."""
        return list(dict.fromkeys(e.acceptance for e in self.entries if e.why_not is None))


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table: every row has one entry per column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def matrix_of(runs: Sequence[Run]) -> Matrix:
    """Put the cells of `runs` side by side. Raises UsageError where no run has a cell."""
    columns = tuple(columns_of(runs))
    if not columns:
        raise UsageError("no run has a cell: nothing to put side by side")
    rows = dict.fromkeys(row_key(c.cell) for column in columns for c in column.run.cells)
    return Matrix(columns, tuple(row_of(columns, *row) for row in rows))


def columns_of(runs: Sequence[Run]) -> Iterator[Column]:
    """One column per run and back end."""
    measured = [(backend, run) for run in runs for backend in dict.fromkeys(c.cell.point.backend for c in run.cells)]
    names = [backend for backend, _ in measured]
    for backend, run in measured:
        yield Column(backend, run, backend if names.count(backend) == 1 else f"{backend} {run.id.rpartition('-')[2]}")


def row_key(cell: Cell) -> tuple[str, int, int, Role]:
    """What identifies a row: the cell without its back end."""
    return cell.point.scenario, cell.point.context, cell.point.batch, cell.role


def row_of(columns: Sequence[Column], scenario: str, context: int, batch: int, role: Role) -> Row:
    """The row that these values identify; it must be in at least one column."""
    row = (scenario, context, batch, role)
    cells = [next((c for c in column.run.cells if belongs_to(c.cell, column, row)), None) for column in columns]
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


def belongs_to(cell: Cell, column: Column, row: tuple[str, int, int, Role]) -> bool:
    """Whether `cell` is the one of `row` in `column`."""
    return cell.point.backend == column.backend and row_key(cell) == row


def why_not(run: Run, result: CellResult | None, reference: Run, reference_cell: Cell) -> str | None:
    """Why `result` may not be compared with the reference cell of the reference run; None where it may."""
    if result is None:
        return "not in its plan"
    if result.status == "failed":
        return "no figures: " + (result.reason or "nothing was measured").splitlines()[0]
    name = result.cell.point.scenario
    if otherwise := differing_settings(run.scenarios[name], reference.scenarios[name]):
        return f"asked otherwise: {', '.join(otherwise)}"
    mine, theirs = (
        of.prompts.get(cell.point.key, {}).get("sha256")
        for of, cell in ((run, result.cell), (reference, reference_cell))
    )
    if mine is None or mine != theirs:
        return f"other prompts: {str(mine)[:8]}, not {str(theirs)[:8]}"
    return None


def differing_settings(a: Scenario, b: Scenario) -> list[str]:
    """The settings that a figure depends on and in which two scenarios of one name differ."""
    return [f for f in ("kind", "pair", "dtype", "budget", "rope", "perf_mode") if getattr(a, f) != getattr(b, f)]

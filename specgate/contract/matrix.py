"""Data classes of `specgate compare --by engines`: the same cells on several back ends side by side."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.contract import AcceptanceSource, Cell, CellResult, Comparison, Point, Role, Run


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
    def cell(self) -> Cell:
        """The cell, on no back end."""
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

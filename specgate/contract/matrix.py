"""Data classes of `specgate runs compare --by engines`: the same cells on several back ends side by side."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.contract import AcceptanceSource, Cell, CellResult, Comparison, EngineFacts, Point, Role, Run


@dataclass(frozen=True, slots=True)
class Column:
    """One back end as measured by one run. `label` is its name, with the run's added where several columns have that
    name.
    """

    backend: str
    run: Run
    label: str

    @property
    def engine(self) -> EngineFacts | None:
        """The engine of that back end; None if none was loaded."""
        points = (result.cell.point for result in self.run.cells)
        keys = (point.key for point in points if point.backend == self.backend)
        return next((self.run.engines[key] for key in keys if key in self.run.engines), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the engine itself about how it decodes the pair."""
        return tuple(dict.fromkeys(w for facts in self.run.engines.values() for w in facts.warnings))

    @property
    def cut_short(self) -> str | None:
        """Reason that the run is incomplete; None if it is complete."""
        return next((why.splitlines()[0] for why in self.run.failures.values()), None)


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
        """Sources of acceptance of the comparable entries, each once."""
        return list(dict.fromkeys(e.acceptance for e in self.entries if e.why_not is None))


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table: every row has one entry per column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

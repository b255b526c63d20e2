"""Views of several runs. A view is built once as a sheet, then rendered for a terminal, as HTML, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specgate.contract.protocols import Format
from specgate.errors import UsageError
from specgate.reports.sheets import console, html, markdown
from specgate.reports.sheets.sheet import Sheet
from specgate.reports.texts.csv import Row, table

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class SheetView(Generic[Subject]):
    """An `protocols.View` whose formats are rendered from one sheet. Only the CSV has rows of its own, with every
    figure.
    """

    name: str
    sheet: Callable[[Subject], Sheet]
    rows: Callable[[Subject], Iterator[Row]]
    columns: Sequence[str]

    def render(self, subject: Subject, format: Format) -> str:
        if format == "csv":
            return table(self.rows(subject), self.columns)
        written = {"console": console.tables, "plain": console.plain, "html": html.page, "md": markdown.text}
        if (write := written.get(format)) is None:
            raise UsageError(f"view {self.name} has no format {format}", hint=f"it has {', '.join(written)} and csv")
        return write(self.sheet(subject))

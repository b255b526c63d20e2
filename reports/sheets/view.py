"""Views of several runs: a sheet for people, tables for programs, and the formats that are rendered from both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from specgate.contract.protocols import Format
from specgate.errors import UsageError
from specgate.reports.sheets import console, html, markdown
from specgate.reports.sheets.sheet import Sheet
from specgate.reports.texts.csv import table

Subject = TypeVar("Subject")
Tables = Mapping[str, Iterable[Mapping[str, Any]]]
"""Name → rows. The rows of a table have the same columns in the same order."""


@dataclass(frozen=True, slots=True)
class SheetView(Generic[Subject]):
    """A `protocols.View` that people read as a sheet.

    `tables`: every figure of the subject. The first table is the CSV file; the JSON file holds all of them.
    """

    name: str
    sheet: Callable[[Subject], Sheet]
    tables: Callable[[Subject], Tables]

    def render(self, subject: Subject, format: Format) -> str:
        if format == "csv":
            return table(next(iter(self.tables(subject).values())))
        if format == "json":
            tables = {name: list(rows) for name, rows in self.tables(subject).items()}
            data = {"schema": f"specgate.{self.name}/v1", **tables}
            return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        on_terminals = {"console": console.tables, "plain": console.plain, "all": console.plain}
        written = {**on_terminals, "html": html.page, "md": markdown.text}
        if (write := written.get(format)) is None:
            known = ", ".join((*written, "csv", "json"))
            raise UsageError(f"view {self.name} has no format {format}", hint=f"it has {known}")
        return write(self.sheet(subject))

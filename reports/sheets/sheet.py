"""A sheet of parts, as Markdown, HTML or a view's document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from specgate.contract.protocols import Format
from specgate.errors import ExitCode, UsageError
from specgate.reports.common.markup import markdown, markdown_table
from specgate.reports.common.parts import Picture, Table
from specgate.reports.page.html import environment
from specgate.reports.sheets import console
from specgate.reports.sheets.console import in_words
from specgate.reports.texts.csv import table


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a command that judges: its state (a value of `State`), its exit code, and the reason in a sentence.

    `word`: what stands in the place of the state, where the command has words of its own.
    """

    state: str
    code: ExitCode
    reason: str
    word: str | None = None

    @property
    def said(self) -> str:
        """The word, else the state."""
        return self.word or self.state


@dataclass(frozen=True, slots=True)
class Section:
    """A table under a title. If the table has no rows, `note` says why.

    `pictures`: drawn above the table where the format has pictures; several of them stand beside each other.
    `folded`: pages show the table only when it is opened, since nobody decides from it.
    """

    title: str
    table: Table
    note: str | None = None
    pictures: Sequence[Picture] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """A page. `banners`: sentences that must be read first, since the figures would be misread without them.

    `facts`: (name, value) of what the figures rest on, for the head of a page.
    """

    title: str
    subtitle: str
    ending: Ending | None
    banners: Sequence[str]
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()


def page(sheet: Sheet) -> str:
    return environment().get_template("sheet.html").render(sheet=sheet) + "\n"


ROWS = 40
"""Most rows of a table. A line below it says how many are left out."""


def text(sheet: Sheet) -> str:
    return "\n".join(lines(sheet)) + "\n"


def lines(sheet: Sheet) -> Iterator[str]:
    yield f"## {markdown(sheet.title)}"
    yield from ("", markdown(sheet.subtitle))
    if sheet.ending:
        yield from ("", f"**{markdown(sheet.ending.said)}**: {markdown(sheet.ending.reason)}")
    for banner in sheet.banners:
        yield from ("", f"> {markdown(banner)}")
    for section in sheet.sections:
        yield from ("", f"### {markdown(section.title)}", "")
        rows = [[in_words(cell) for cell in row] for row in section.table.rows]
        if rows:
            yield from markdown_table(section.table.head, rows[:ROWS], section.table.texts)
        if len(rows) > ROWS:
            yield from ("", f"{len(rows) - ROWS} more rows are left out.")
        if section.note:
            yield from ("", markdown(section.note))


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
        written = {"console": console.tables, "plain": console.plain, "html": page, "md": text}
        if (write := written.get(format)) is None:
            known = ", ".join((*written, "csv", "json"))
            raise UsageError(f"view {self.name} has no format {format}", hint=f"it has {known}")
        return write(self.sheet(subject))

"""A sheet in every format: HTML, Markdown, on a terminal, or as plain lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from specgate.contract.protocols import Format, visible
from specgate.errors import UsageError
from specgate.reports.common.parts import Entry, markdown, markdown_table
from specgate.reports.page.html import environment
from specgate.reports.sheets.sheet import Section, Sheet
from specgate.reports.texts.console import STYLES, columns, printed, words
from specgate.reports.texts.csv import table


def page(sheet: Sheet) -> str:
    return environment().get_template("sheet.html").render(sheet=sheet) + "\n"


NAME = 22
"""Longest entry of the first column, in characters, that is never wrapped."""
WIDE = 120
"""Columns of a terminal on which long names have room."""
MARKED = {"best": "bold green", "slower": "red"}
"""Mark of an entry → its style. The note says the same in words."""
STYLES_BY_NAME = {state.value: style for state, style in STYLES.items()}


def on_terminal(sheet: Sheet) -> str:
    heads = [words((sheet.title, "bold")), words((sheet.subtitle, "dim"))]
    banners = [words((banner, "bold yellow")) for banner in sheet.banners]
    sections = [part for section in sheet.sections for part in section_parts(section)]
    return "\n".join(printed(*heads, *banners, *sections, *(words((line, "bold")) for line in ending(sheet))))


def section_parts(section: Section) -> Iterator[Any]:
    yield words((f"\n{section.title}", "bold"))
    if section.table.rows:
        yield _table(section)
    if section.note:
        yield words((section.note, "dim"))


def _table(section: Section) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for n, head in enumerate(section.table.head):
        # A name of the first column must not be broken in two. Other columns may wrap. On a narrow terminal, long names
        # wrap between their words: a column without a fixed width would be cut to whatever is left.
        whole = n == 0 and all(len(in_words(row[0])) <= NAME for row in section.table.rows)
        side: Literal["left", "right"] = "left" if n < section.table.texts else "right"
        fixed = longest_word(section) if n == 0 and not whole and columns() < WIDE else None
        made.add_column(words(head), justify=side, overflow="fold", no_wrap=whole, width=fixed)
    for row in section.table.rows:
        made.add_row(*map(_cell, row))
    return made


def longest_word(section: Section) -> int:
    """The width of the longest word in the first column, at most NAME."""
    texts = (section.table.head[0], *(in_words(row[0]) for row in section.table.rows))
    return min(NAME, max(len(word) for text in texts for word in text.split()))


def _cell(entry: str | Entry) -> Any:
    text, note, mark = (entry, None, None) if isinstance(entry, str) else (entry.text, entry.note, entry.mark)
    style = MARKED.get(mark or "", STYLES_BY_NAME.get(text, ""))
    return words((text, style), *([(f"\n{note}", "dim")] if note else []))


def plain(sheet: Sheet) -> str:
    return "\n".join(map(visible, plain_lines(sheet)))


def plain_lines(sheet: Sheet) -> Iterator[str]:
    yield sheet.title
    yield sheet.subtitle
    yield from (f"note: {banner}" for banner in sheet.banners)
    for section in sheet.sections:
        yield f"{section.title}:"
        if section.table.rows:
            yield "  " + "\t".join(section.table.head)
        for row in section.table.rows:
            yield "  " + "\t".join(map(in_words, row))
        if section.note:
            yield f"  {section.note}"
    yield from ending(sheet)


def in_words(entry: str | Entry) -> str:
    text = entry if isinstance(entry, str) else f"{entry.text} ({entry.note})" if entry.note else entry.text
    return " ".join(text.split())


def ending(sheet: Sheet) -> Iterator[str]:
    if sheet.ending:
        yield f"{sheet.ending.said}: {sheet.ending.reason}"


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
        on_terminals = {"console": on_terminal, "plain": plain, "all": plain}
        written = {**on_terminals, "html": page, "md": text}
        if (write := written.get(format)) is None:
            known = ", ".join((*written, "csv", "json"))
            raise UsageError(f"view {self.name} has no format {format}", hint=f"it has {known}")
        return write(self.sheet(subject))

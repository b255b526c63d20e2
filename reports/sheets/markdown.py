"""Render a sheet as Markdown, for a CI comment or step summary."""

from __future__ import annotations

from collections.abc import Iterator

from specgate.reports.common.parts import markdown, markdown_table
from specgate.reports.sheets.console import in_words
from specgate.reports.sheets.sheet import Sheet

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

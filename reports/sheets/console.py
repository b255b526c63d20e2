"""Render a sheet for a terminal as tables, or as plain lines with one row each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from specgate.contract.protocols import visible
from specgate.reports.common.parts import Entry
from specgate.reports.sheets.sheet import Section, Sheet
from specgate.reports.texts.console import STYLES, columns, printed, words

NAME = 22
"""Longest entry of the first column, in characters, that is never wrapped."""
WIDE = 120
"""Columns of a terminal on which long names have room."""
MARKED = {"best": "bold green", "slower": "red"}
"""Mark of an entry → its style. The note says the same in words."""
STYLES_BY_NAME = {state.value: style for state, style in STYLES.items()}


def tables(sheet: Sheet) -> str:
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

"""The parts that pages are made of: tables, and pictures with their tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specgate.contract.protocols import visible
from specgate.reports.common.figures import NONE

_MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
"""Characters of Markdown text that are written as entities. An `@` would notify the user of that name."""


def markdown(text: str) -> str:
    """One line of GitHub-flavoured Markdown that shows `text` as it is."""
    line = " ".join(visible(text).split())
    return _MARKDOWN.sub(r"\\\1", "".join(_ENTITIES.get(c, c) for c in line))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a table. The first `texts` columns are aligned left, the others right. Cells are escaped."""
    rule = ["---" if i < texts else "---:" for i in range(len(head))]
    return ["| " + " | ".join(cells) + " |" for cells in (map(markdown, head), rule, *(map(markdown, r) for r in rows))]


def command_data(text: str) -> str:
    """`text` as the message of a workflow command. It becomes one line."""
    return visible(text).replace("%", "%25").replace("\n", "%0A")


def command_property(text: str) -> str:
    """`text` as a property of a workflow command, in which colons and commas must be escaped too."""
    return command_data(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of a table: its text, and a note below it in a quieter style.

    `mark`: what a page marks it as: a value of `State`, `best` or `slower`. The words that say so are in text or note,
    since other formats show no marks; only a state is added by the page. `advisory`: the state decides nothing.
    """

    text: str
    note: str | None = None
    mark: str | None = None
    advisory: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first `texts` columns are words, aligned left; the others are figures, aligned right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    texts: int = 1


def dense(table: Table) -> Table:
    """Return the table without the columns, after its first, in which every row has a dash and no note."""
    empty: tuple[object, ...] = (NONE, Entry(NONE))
    kept = [n for n in range(len(table.head)) if n == 0 or any(row[n] not in empty for row in table.rows)]
    texts = sum(n < table.texts for n in kept)
    return Table([table.head[n] for n in kept], [[row[n] for n in kept] for row in table.rows], texts)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and the tables with its figures.

    If there was nothing to draw, `svg` is None and `caption` says why. `wide`: the picture needs the width of the page.
    """

    name: str
    caption: str
    svg: str | None = None
    tables: Sequence[Table] = ()
    wide: bool = False


def left_out(name: str, why: str) -> Picture:
    """A picture that could not be drawn, and why."""
    return Picture(name, f"Left out: {why}.")

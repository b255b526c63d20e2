"""The parts that pages are made of: tables, and pictures with their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgate.reports.common.figures import NONE


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

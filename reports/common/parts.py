"""What the page is made of: tables, and pictures with their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of a table: its text, and a second, quieter line."""

    text: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """`texts` leading columns are words and flush left; the others are figures and flush right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    texts: int = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """Without `svg` there was nothing to draw; `caption` then says why. `wide`: it needs the width of the page."""

    name: str
    caption: str
    svg: str | None = None
    tables: Sequence[Table] = ()
    wide: bool = False


def left_out(name: str, why: str) -> Picture:
    return Picture(name, f"Left out: {why}.")

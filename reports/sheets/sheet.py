"""A page of tables, in no format yet: title, what must be read first, sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgate.errors import ExitCode
from specgate.reports.common.parts import Table


@dataclass(frozen=True, slots=True)
class Ending:
    """What a command ends with, where it judges: a value of `State`, the exit code, and the reason in a sentence."""

    state: str
    code: ExitCode
    reason: str


@dataclass(frozen=True, slots=True)
class Section:
    """`svg` is a picture of what the table has in figures. Without rows, `note` says why there are none."""

    title: str
    table: Table
    note: str | None = None
    svg: str | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """`banners` are sentences without which the figures would be misread."""

    title: str
    subtitle: str
    ending: Ending | None
    banners: Sequence[str]
    sections: Sequence[Section]

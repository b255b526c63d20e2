"""A page of tables in no particular format: a title, what must be read first, and sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgate.errors import ExitCode
from specgate.reports.common.parts import Picture, Table


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

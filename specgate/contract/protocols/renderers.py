"""Protocols of a report, and of a view of several runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar, runtime_checkable

from specgate.contract import Policy, Run


@runtime_checkable
class Report(Protocol):
    """A renderer of one run. It must be pure: the same run gives the same text.

    The harness writes the text to `filename` in the run folder. A report without a file name is printed to the
    terminal.
    """

    name: str
    filename: str | None

    def render(self, run: Run, policy: Policy) -> str:
        """The text of `run`, which was judged by `policy`."""


@runtime_checkable
class Combined(Protocol):
    """Optional for a report: several runs in one file, such as a table with a column that names the run."""

    def render_all(self, runs: Sequence[Run]) -> str:
        """The text of all `runs` together."""


@runtime_checkable
class Separate(Protocol):
    """Optional for a report: several files, such as one per cell, for tools that read one result at a time. No run
    folder has them; `runs report --report NAME` writes them.
    """

    def render_each(self, run: Run) -> Mapping[str, str]:
        """File name → text."""


@runtime_checkable
class Tabular(Protocol):
    """Optional for a report: one table. A row is column → value, and may lack columns."""

    columns: Sequence[str]

    def rows(self, run: Run) -> Iterable[Mapping[str, str | int | float | None]]:
        """Return the rows of one run."""


Format = Literal["console", "plain", "all", "html", "md", "csv", "json", "junit"]
"""The formats that a view may be asked for; `all` is everything as plain lines.

A view of something that is not judged has no `junit`."""


Subject = TypeVar("Subject", contravariant=True)


@runtime_checkable
class View(Protocol[Subject]):
    """A renderer of what is made of several runs. It must be pure: the same subject gives the same text."""

    name: str

    def render(self, subject: Subject, format: Format) -> str:
        """The text of `subject` in `format`."""

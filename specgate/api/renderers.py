"""What a report, a view of several runs and an export implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar, runtime_checkable

from specgate.core import Policy, Run
from specgate.core.trends import Trends


@runtime_checkable
class Report(Protocol):
    """A renderer. Pure: the same run gives the same text, which the harness writes to `filename` of the run folder.

    Without a file name, a report is for the terminal.
    """

    name: str
    filename: str | None

    def render(self, run: Run, policy: Policy) -> str: ...


@runtime_checkable
class Combined(Protocol):
    """What a report has besides where several runs make one file, such as a table with a column that names the run."""

    def render_all(self, runs: Sequence[Run]) -> str: ...


Format = Literal["console", "plain", "html", "md", "csv"]


Subject = TypeVar("Subject", contravariant=True)


@runtime_checkable
class View(Protocol[Subject]):
    """A renderer of a contrast, a bench matrix or trends. Pure: the same subject gives the same text."""

    name: str

    def render(self, subject: Subject, format: Format) -> str: ...


@runtime_checkable
class Export(Protocol):
    """Trends as the input files of another tool: file name → text."""

    name: str

    def files(self, trends: Trends) -> Mapping[str, str]: ...

"""The report `github`: the verdict of a run as an annotation of a GitHub Actions run, one workflow command.

It is a notice if the run is green, a warning if it is INCONCLUSIVE, else an error. summary.md has the rules.
"""

from __future__ import annotations

from specgate.contract import Policy, Run
from specgate.errors import ExitCode
from specgate.reports.common.parts import command_data, command_property
from specgate.reports.common.summary import headline

LEVELS = {ExitCode.PASS: "notice", ExitCode.INCONCLUSIVE: "warning"}
"""Exit code → level of the annotation; every other code is an error."""


class GithubReport:
    """An `protocols.Report` that is printed, not written to a file."""

    name = "github"
    filename = None

    def render(self, run: Run, policy: Policy) -> str:
        head = headline(run)
        title = command_property(f"specgate {run.kind}: {head.state}")
        return f"::{LEVELS.get(head.code, 'error')} title={title}::{command_data(f'{head.reason} (run {run.id})')}"


REPORT = GithubReport()

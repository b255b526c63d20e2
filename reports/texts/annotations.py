"""The report `github`: verdicts as annotations of a GitHub Actions run, one workflow command per line.

A required verdict that is not green is an error, since it fails the command. One that is advisory or INCONCLUSIVE is a
warning. What was not judged is an error too, and a notice where the policy says why. GitHub keeps ten annotations of
each level per step. If there are more, the tenth says how many are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specgate.analysis.cell_names import cell_name
from specgate.contract import Policy, Run, State, Verdict
from specgate.reports.common.parts import command_data, command_property
from specgate.reports.common.summary import QUIET, about, gap_in_words, headline

Level = Literal["error", "warning", "notice"]
KEPT = 10
"""Annotations of one level that GitHub keeps per step."""


@dataclass(frozen=True, slots=True)
class Annotation:
    level: Level
    title: str
    message: str

    def __str__(self) -> str:
        return f"::{self.level} title={command_property(self.title)}::{command_data(self.message)}"


class GithubReport:
    """An `protocols.Report` that is printed, not written to a file."""

    name = "github"
    filename = None

    def render(self, run: Run, policy: Policy) -> str:
        return "\n".join(map(str, annotated(run)))


def annotated(run: Run) -> Iterator[Annotation]:
    """The verdict of the run as a notice, then errors, then warnings."""
    head = headline(run)
    yield Annotation("notice", f"specgate {run.kind}: {head.state}", f"{head.reason} (run {run.id})")
    for gap in run.not_judged:
        if gap.why is not None:
            yield Annotation("notice", f"{gap.kind} not judged", f"{gap_in_words(gap, run.scenarios)}: {gap.why}")
    failures = [
        Annotation("error", f"{cell_name(where, run.scenarios)}: cut short", why) for where, why in run.failures.items()
    ]
    verdicts = [Annotation(kind, title(run, v), message(v)) for v in run.verdicts if (kind := level_of(v))]
    silent = [(gap.kind, gap_in_words(gap, run.scenarios)) for gap in run.not_judged if gap.why is None]
    unjudged = [Annotation("error", f"{kind} not judged", f"no required rule judges {of}") for kind, of in silent]
    levels: tuple[Level, ...] = ("error", "warning")
    for level in levels:
        annotations = [a for a in (*failures, *unjudged, *verdicts) if a.level == level]
        yield from annotations if len(annotations) <= KEPT else annotations[: KEPT - 1]
        if len(annotations) > KEPT:
            yield Annotation(
                level, "and more", f"{len(annotations) - KEPT + 1} further ones are in report.html of run {run.id}"
            )


def level_of(verdict: Verdict) -> Level | None:
    """The level of a verdict's annotation; None if it needs none."""
    if verdict.state in QUIET:
        return None
    return "error" if verdict.required and verdict.state is not State.INCONCLUSIVE else "warning"


def title(run: Run, verdict: Verdict) -> str:
    return f"{verdict.state.value}{'' if verdict.required else ' (advisory)'} {about(verdict, run.scenarios)}"


def message(verdict: Verdict) -> str:
    return verdict.message + (f"\nnext: {verdict.next_step}" if verdict.next_step else "")


REPORT = GithubReport()

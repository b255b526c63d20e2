"""The last lines of a run: its rules counted, its folder and page, the next command, and the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from specgate.contract import Run, State
from specgate.contract.verdict import RESUME
from specgate.errors import ExitCode

PAGE: Final = "report.html"
GREEN: Final = {State.PASS, State.IMPROVED}


def closing_lines(run: Run, path: Path, end: tuple[str, ExitCode], between: Sequence[str] = ()) -> Iterator[str]:
    """Yield the last lines that are printed of the run in the folder `path`.

    `end`: its verdict and exit code. `between`: lines that stand below the count of its rules.
    """
    folder = shlex.quote(str(path))
    yield f"{counted_rules(run)}: specgate runs show {folder} --all"
    yield from between
    yield f"run folder {path}"
    if (path / PAGE).is_file():
        yield f"page {path / PAGE}"
    verdict, code = end
    yield f"next: {next_command(run, folder, code)}"
    *kinds, last = dict.fromkeys(gap.kind for gap in run.not_judged) or [""]
    unjudged = " and ".join(filter(None, (", ".join(kinds), last)))
    yield f"verdict {verdict} (exit {int(code)})" + (f", {unjudged} not judged" if unjudged else "")


def counted_rules(run: Run) -> str:
    """Return the number of rules that are green in every cell, and of those that judge nothing in this run."""
    states: dict[str, set[State]] = {}
    for v in run.verdicts:
        states.setdefault(v.rule, set()).add(v.state)
    skipped = sum(of == {State.SKIPPED} for of in states.values())
    green = sum(of <= {*GREEN, State.SKIPPED} for of in states.values()) - skipped
    return f"{green} rule{'s' * (green != 1)} green" + (f", {skipped} not asked" if skipped else "")


def next_command(run: Run, folder: str, code: ExitCode) -> str:
    """Return the command that says more about the run, or brings it to an end."""
    if run.status == "interrupted":
        return f"specgate {run.kind} --resume {folder}"
    steps = [v.next_step for v in run.verdicts if v.required and v.next_step and RESUME in v.next_step]
    if code is ExitCode.INCONCLUSIVE and steps:
        _, _, options = max(steps, key=lambda step: (len(step), step)).rpartition(RESUME)
        return f"specgate {run.kind} --resume {folder}{options}"
    gates = run.promotion.gates if run.promotion else {}
    if code is ExitCode.PASS and run.promotion and run.kind == "micro" and not gates.keys().isdisjoint(run.scenarios):
        return run.promotion.command
    if code in (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE):
        return f"specgate runs explain {folder}"
    return f"specgate runs show {folder} --all"

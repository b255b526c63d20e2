"""The end of a run: closing engines, verdict, ledger, reports."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from specgate import plugins
from specgate.analysis.verdict import overall
from specgate.contract import Plan, Run, State
from specgate.contract.verdict import RESUME
from specgate.errors import ExitCode, InvalidResult, SpecgateError
from specgate.files.config import Config
from specgate.files.journal import Journal
from specgate.files.run_folder import RunFolder, without_credentials
from specgate.machine.monitor import snapshot
from specgate.machine.software import Software
from specgate.promotion.claim import software_of
from specgate.promotion.fingerprint import changes
from specgate.run.beginning import now
from specgate.run.recompute import Stopped, ending, judgement, loaded, speculation_blocks, with_figures
from specgate.run.watched_gpus import run_gpus

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
    if command := next_command(run, folder, code):
        yield f"next: {command}"
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


def next_command(run: Run, folder: str, code: ExitCode) -> str | None:
    """Return the command that says more about the run, or brings it to an end. None if the rules have said it all."""
    if run.status in ("interrupted", "partial"):
        return f"specgate {run.kind} --resume {folder}"
    steps = [v.next_step for v in run.verdicts if v.required and v.next_step and RESUME in v.next_step]
    if code is ExitCode.INCONCLUSIVE and steps:
        _, _, options = max(steps, key=lambda step: (len(step), step)).rpartition(RESUME)
        return f"specgate {run.kind} --resume {folder}{options}"
    order = run.promotion
    if code is ExitCode.PASS and order and run.kind == "micro" and not order.gates.keys().isdisjoint(run.scenarios):
        whole = order.streak + 1 >= order.needed
        return re.sub(r" --scenario \S+", "", order.command.replace(" micro", " full", 1)) if whole else order.command
    if code in (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE):
        return f"specgate runs explain {folder}"
    return "specgate machine doctor" if code is ExitCode.ENV_REJECTED else None


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of measuring a plan: the samples, the failures of single points, and the error or interrupt that stopped
    the whole run, or None.

    `journal` is None if somebody else than the harness has written to the run folder: then no figure may rest on it.
    `failures`: point key → why the point is missing or incomplete. `sampled_after`: the green run after which texts
    were not compared whole, or None.
    """

    journal: Journal | None
    failures: Mapping[str, str]
    stopped: Stopped
    sampled_after: str | None = None


def recorded_as(run: Run, stopped: Stopped) -> tuple[State, ExitCode]:
    """The state and exit code that the ledger records for a run.

    A run that was stopped is INCONCLUSIVE, since it proves nothing. The exceptions are a rejected environment and an
    invalid result, which are recorded as what they are.
    """
    _, code = ending(run, stopped)
    if stopped is None:
        return overall(run)[0], code
    proves = {ExitCode.ENV_REJECTED: State.ENV_REJECTED, ExitCode.INVALID: State.INVALID}
    return proves.get(code, State.INCONCLUSIVE), code


def check_unchanged(began: Software, config: Config) -> None:
    """Hold the software to what it was when the run began: blocks of two versions must not be paired.

    Raises InvalidResult that names what has changed, and of a plug-in the files.
    """
    now = software_of(config)
    changed = [
        f"{c.key}: {files_changed(began, now, c.key)}" if c.key in now.files else str(c)
        for c in changes(began.facts, now.facts)
    ]
    if changed:
        raise InvalidResult(f"the software changed while the run went on: {'; '.join(changed)}", hint="measure anew")


def files_changed(began: Software, now: Software, plugin: str) -> str:
    """The files of a plug-in that were changed, added or removed."""
    then, is_ = began.files.get(plugin, {}), now.files.get(plugin, {})
    unlike = sorted(file for file in {**then, **is_} if then.get(file) != is_.get(file))
    return ", ".join(unlike) or "its metadata"


def reason_of(stopped: SpecgateError | KeyboardInterrupt) -> str:
    """Reason that the run was stopped, in words."""
    return str(stopped) or "interrupted"


def conclude(run: Run, plan: Plan, config: Config, folder: RunFolder, measured: Measured) -> Run:
    """The run with the figures of its journal, its final status, and the reason why blocks are missing, if any are.

    Without a journal that can be trusted, the run gets no figures. Also writes env.json anew, now with the state of
    the machine after the run.
    """
    journal, stopped = measured.journal, measured.stopped
    environment = {**run.environment, "env_after": snapshot(run_gpus(config))}
    folder.write_json("env.json", environment)
    run = with_figures(run, plan, config.policy, journal) if journal is not None else run
    incomplete = {c.cell.point.key for c in run.cells if c.status != "ok"}
    old_failures = {k: v for k, v in run.failures.items() if k in incomplete}
    cut_short = {"run": reason_of(stopped)} if stopped is not None else {}
    if isinstance(stopped, KeyboardInterrupt):
        status: Literal["interrupted", "partial", "complete"] = "interrupted"
    else:
        status = "partial" if stopped is not None or incomplete else "complete"
    concluded = replace(
        run,
        status=status,
        ended=now(),
        fingerprint={**run.fingerprint, **loaded(run.engines)},
        environment=environment,
        failures={**old_failures, **measured.failures, **cut_short},
        sampled_after=measured.sampled_after or run.sampled_after,
    )
    return without_credentials(concluded)


def write(
    run: Run, plan: Plan, config: Config, folder: RunFolder, end: tuple[str, ExitCode], *, reports: bool = True
) -> Run:
    """Write env.json, gates.json, the reports (unless `reports` is false), run.json and the manifest, in this order.

    run.json comes after the reports, so a run.json whose status is `complete` means that they are all there. `end`: the
    verdict and the exit code for gates.json. Returns the run with the hashes of the files that were finished before the
    reports.
    """
    folder.write_json("env.json", run.environment)
    folder.write_json("gates.json", judgement(run, config.policy, end))
    rendered = {r.filename: r for r in map(plugins.report, plugins.registered("specgate.reports")) if r.filename}
    run = replace(run, files=folder.evidence_hashes(), reports=tuple(rendered) if reports else ())
    for file in run.reports or ():
        folder.write_text(file, rendered[file].render(run, config.policy))
    blocks = speculation_blocks(run, plan, folder.journal()) if run.cells else {}
    folder.write_run(run, {"eagle_speculation": blocks})
    folder.write_manifest()
    return run

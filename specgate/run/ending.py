"""The end of a run: closing engines, verdict, ledger, reports."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from specgate import plugins
from specgate.analysis.cell_figures import summary_line
from specgate.analysis.verdict import dead_rules, overall
from specgate.contract import Plan, Run, State
from specgate.contract.protocols import Report
from specgate.contract.verdict import RESUME
from specgate.errors import ExitCode, InvalidResult, OtherVersion, SpecgateError
from specgate.files.config import Config
from specgate.files.journal import Journal
from specgate.files.json_text import from_plain
from specgate.files.manifest import ENDING
from specgate.files.run_folder import RUN, RunFolder, run_json, without_credentials
from specgate.files.run_schema import made_by
from specgate.files.writing import json_text
from specgate.machine import inventory
from specgate.machine.monitor import snapshot
from specgate.machine.software import Software
from specgate.planning.ad_hoc import PREFIX
from specgate.promotion.admission import entry_of, lines_on
from specgate.promotion.claim import software_of
from specgate.promotion.ending import Ending, begin, cut, finish, sha256_of_text
from specgate.promotion.fingerprint import changes
from specgate.promotion.ledger import Entry, Ledger
from specgate.run.beginning import now
from specgate.run.recompute import Stopped, ending, judgement, loaded, speculation_blocks, with_figures
from specgate.run.resuming import resume_command
from specgate.run.watched_gpus import run_gpus

PAGE: Final = "report.html"
ENV: Final = "env.json"
GATES: Final = "gates.json"
NOT_STORED: Final = "not stored"
"""In the place of a verdict whose files could not be written: the error has what to do."""
MEASURE_ANEW: Final = "measure anew: blocks of two versions are not paired"
GREEN: Final = {State.PASS, State.IMPROVED}


def closing_lines(run: Run, path: Path, end: tuple[str, ExitCode], between: Sequence[str] = ()) -> Iterator[str]:
    """Yield the last lines that are printed of the run in the folder `path`.

    `end`: its verdict and exit code. `between`: lines that stand below the count of its rules.
    """
    folder = shlex.quote(str(path))
    yield f"{counted_rules(run)}: specgate runs show {folder} --all"
    yield from between
    yield f"page {path / PAGE}" if (path / PAGE).is_file() else f"run folder {path}"
    verdict, code = end
    if verdict != NOT_STORED and (command := next_command(run, folder, code)):
        yield f"next: {command}"
    *kinds, last = dict.fromkeys(gap.kind for gap in run.not_judged) or [""]
    unjudged = " and ".join(filter(None, (", ".join(kinds), last)))
    judged = (*((f"{unjudged} not judged",) if unjudged else ()), *dead_rules(run))
    yield ", ".join((f"verdict {verdict} (exit {int(code)})", *judged))


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
    if MEASURE_ANEW in run.failures.get("run", ""):
        return None
    if run.status in ("interrupted", "partial"):
        return f"specgate {run.kind} --resume {folder}"
    steps = [v.next_step for v in run.verdicts if v.required and v.next_step and RESUME in v.next_step]
    if code is ExitCode.INCONCLUSIVE and steps:
        _, _, options = max(steps, key=lambda step: (len(step), step)).rpartition(RESUME)
        return f"specgate {run.kind} --resume {folder}{options}"
    order = run.promotion
    if code is ExitCode.PASS and order and run.kind == "micro" and not order.gates.keys().isdisjoint(run.scenarios):
        if order.streak + 1 >= order.needed:
            return re.sub(r" --scenario \S+", "", order.command.replace(" micro", " full", 1))
        if not all(name.startswith(PREFIX) for name in order.gates):  # of a question of one's own, one run may be all
            return order.command
    if code in (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE):
        return f"specgate runs explain {folder}"
    return "specgate machine doctor" if code is ExitCode.ENV_REJECTED else None


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of measuring a plan: the samples, the failures of single points, and the error or interrupt that stopped
    the whole run, or None.

    `journal` is None if it cannot be read again: then no figure may rest on it.
    `failures`: point key → why the point is missing or incomplete. `sampled_after`: the green run after which texts
    were not compared whole, or None.
    """

    journal: Journal | None
    failures: Mapping[str, str]
    stopped: Stopped
    sampled_after: str | None = None


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
        raise InvalidResult(f"the software changed while the run went on: {'; '.join(changed)}", hint=MEASURE_ANEW)


def files_changed(began: Software, now: Software, plugin: str) -> str:
    """The files of a plug-in that were changed, added or removed."""
    then, is_ = began.files.get(plugin, {}), now.files.get(plugin, {})
    unlike = sorted(file for file in {**then, **is_} if then.get(file) != is_.get(file))
    return ", ".join(unlike) or "its metadata"


def reason_of(stopped: SpecgateError | KeyboardInterrupt) -> str:
    """Reason that the run was stopped, in words."""
    return str(stopped) or "interrupted"


def code_of(stopped: SpecgateError | KeyboardInterrupt) -> ExitCode:
    """Exit code of a run that was stopped."""
    return stopped.exit_code if isinstance(stopped, SpecgateError) else ExitCode.INTERRUPTED


def conclude(run: Run, plan: Plan, config: Config, measured: Measured) -> Run:
    """The run with the figures of its journal, its final status, and the reason why blocks are missing, if any are.

    Without a journal that can be trusted, the run gets no figures. Its environment has the state of the machine after
    the run.
    """
    journal, stopped = measured.journal, measured.stopped
    environment = {**run.environment, "env_after": snapshot(run_gpus(config))}
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
        failures={**cut_short, **old_failures, **measured.failures},
        stopped=code_of(stopped) if stopped is not None else None,
        sampled_after=measured.sampled_after or run.sampled_after,
    )
    return without_credentials(concluded)


def decide(run: Run, plan: Plan, config: Config, folder: RunFolder, *, reports: bool = True) -> tuple[Run, Ending]:
    """Decide how the run in `folder` ends: see `promotion.ending`. `reports`: whether any are rendered.

    Returns the run as it will be stored, too. A full run that was refused once its engine was loaded has measured
    nothing, and gets no entry in the ledger.
    """
    gates = judgement(run, config.policy, ending(run))
    known = {name: sha256_of_text(json_text(data)) for name, data in ((ENV, run.environment), (GATES, gates))}
    run = replace(run, files=folder.evidence_hashes(known), reports=tuple(report_files()) if reports else ())
    blocks = speculation_blocks(run, plan, folder.journal()) if run.cells else {}
    files = {ENV: run.environment, GATES: gates, RUN: run_json(run, {"eagle_speculation": blocks})}

    def entry(manifest_sha256: str) -> Entry | None:
        if run.stopped is ExitCode.ORDER_REFUSED:
            return None
        return entry_of(run, config, *overall(run), manifest_sha256)

    return run, begin(folder, files, run.reports, entry)


def store(folder: RunFolder, decided: Ending, run: Run, config: Config, ledger: Ledger) -> list[str]:
    """Store what follows from the verdict of `run`: the ledger's entry, the files that state it, the reports. Returns
    the lines to print about the ledger. See `promotion.ending.finish`.
    """

    def rendered() -> Iterator[tuple[str, str]]:
        known = report_files()
        for file in decided.reports:
            yield file, known[file].render(run, config.policy)

    torn = finish(folder, decided, ledger, rendered)
    summaries = [*speculation_lines(run, decided.stated(RUN))]
    return [*summaries, *(lines_on(run, config, ledger, torn) if decided.entry is not None else [])]


def speculation_lines(run: Run, stored: Mapping[str, object]) -> Iterator[str]:
    """Yield `summary_line` of every spec cell in PERF_MODE. `stored`: the content of run.json."""
    blocks = stored["eagle_speculation"]
    for key, block in blocks.items() if isinstance(blocks, Mapping) else ():
        result = run.result(key)
        if result is not None and run.scenarios[result.cell.point.scenario].perf_mode:
            yield from summary_line(key, block)


def finish_cut(path: Path, ledger: Ledger) -> tuple[Run, Config, tuple[str, ExitCode], list[str]] | None:
    """Finish the ending of the run in the folder `path`, without measuring anything; None if none was cut.

    Returns the run, its configuration, its verdict and exit code, and the lines to print about the ledger. Raises
    OtherVersion for a run of another source tree, whose reports would be other ones, and whatever `store` raises.
    """
    if (decided := cut(path)) is None:
        return None
    folder, gates = RunFolder.open(path), decided.stated(GATES)
    config = folder.read_config()
    run = as_configured(from_plain(Run, decided.stated(RUN), path / ENDING), config)
    if run.fingerprint.get("source_tree_sha256") != inventory.source_tree_sha256():
        hint = f"its verdict is kept: {resume_command(run, path)}, with what made it"
        raise OtherVersion(f"{path}: its ending was cut, and it is of {made_by(decided.stated(RUN))}", hint=hint)
    with folder.lock():
        lines = store(folder, decided, run, config, ledger)
    return run, config, (str(gates["verdict"]), ExitCode(gates["exit_code"])), lines


def as_configured(run: Run, config: Config) -> Run:
    """The run as run.json has it, with what config.resolved.yaml says of it."""
    return replace(run, scenarios=config.scenarios, pair=config.pair, kind=config.kind)


def stored_run(folder: RunFolder, config: Config) -> Run:
    """The run as run.json stores it, with what config.resolved.yaml says of it."""
    return as_configured(folder.read_run(), config)


def report_files() -> dict[str, Report]:
    """File → report, for every installed report that is a file. Pages, whose pictures take long, come last."""
    reports = {r.filename: r for r in map(plugins.report, plugins.registered("specgate.reports")) if r.filename}
    return {file: reports[file] for file in sorted(reports, key=lambda file: file.endswith(".html"))}

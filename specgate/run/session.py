"""One run, from the request to the exit code.

Request ─► Config, Plan ─► Runner (journal) ─► figures ─► gates ─► run.json, gates.json, reports
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from specgate import plugins
from specgate.analysis.quality.answers import answers_of
from specgate.analysis.verdict import foreseeable, in_words
from specgate.checkpoints.tokenizer_file import read_tokenizer
from specgate.contract import Plan, Point, Policy, Promotion, Run
from specgate.contract.protocols import DrivesAnotherEngine, TunesItself
from specgate.errors import EnvironmentRefused, ExitCode, InvalidResult, SpecgateError
from specgate.files.config import Config
from specgate.files.journal import Journal
from specgate.files.manifest import ENDING
from specgate.files.run_folder import RUN, RunFolder
from specgate.machine.monitor import watching
from specgate.machine.software import Software
from specgate.planning.defaults import machine_size, runs_of
from specgate.planning.gates import kinds_of
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompts
from specgate.planning.request import Request
from specgate.planning.resolution import read_back, resolve, tokenizer_of
from specgate.planning.rule_names import nowhere
from specgate.planning.scenario import find
from specgate.promotion.admission import admission, promotion_of, sampling
from specgate.promotion.claim import software_of
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.since_last_green import compared, previous_green
from specgate.promotion.standing import NOBODY
from specgate.run import early_stop
from specgate.run.beginning import begin, fitting_prompts, own_prompts, time_limits
from specgate.run.early_stop import Look
from specgate.run.ending import (
    NOT_STORED,
    Measured,
    check_unchanged,
    closing_lines,
    code_of,
    conclude,
    decide,
    finish_cut,
    reason_of,
    store,
)
from specgate.run.progress import progress
from specgate.run.recompute import Stopped, ending, judge
from specgate.run.resuming import check_resumable, resume, resume_command
from specgate.run.runner import MayStop, Runner
from specgate.run.watched_gpus import engine_options
from specgate.sandbox.isolation import FACT, isolated
from specgate.terminal import echo


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with everything that follows from it before an engine is loaded.

    `promotion`: which micro gates must be green, and how often they have been. `prompts`: point key → its prompts.
    `software`: what the run rests on, read before an engine is loaded.
    """

    request: Request
    config: Config
    ledger: Ledger
    promotion: Promotion
    plan: Plan
    prompts: Mapping[str, Prompts]
    software: Software


Measuring = Callable[[Resolved, RunFolder, Run], Measured]
"""Runs the rounds of a plan that the journal of a run folder lacks. The run is the one that began, without figures."""


def carry_out_each(request: Request) -> ExitCode:
    """Carry out every run that a request takes here (`defaults.runs_of`), up to one that is interrupted. Returns the
    first code that is not 0.
    """
    codes, requests = [], runs_of(request, machine_size())
    for each in requests:
        if requests != [request]:
            echo(f"specgate {each.kind} {' '.join(each.argv[1:])}")
            tune(each)
        codes.append(carry_out(each))
        if codes[-1] is ExitCode.INTERRUPTED:
            break
    return next((code for code in codes if code), ExitCode.PASS)


def tune(request: Request) -> None:
    """Let the back end tune itself for the pair of the request's scenario, in a process of its own.

    A run without it is slower and no less right, so that a failure is said and nothing else.
    """
    backend = plugins.backend(request.backend) if request.backend else plugins.default_backend()
    if request.perf_mode is False or not isinstance(backend, TunesItself):
        return
    words = backend.tuning(find(request.scenarios[0]).pair)
    echo(f"specgate {' '.join(words)}")
    if another_command(words):
        echo("tuning did not end: going on without it", err=True)


def another_command(words: Sequence[str]) -> int:
    """Carry out another command of specgate in a process of its own, and return its exit code.

    Its process group is its own, so that Ctrl-C reaches it once, from here. It then stores what it has, as by itself.
    """
    with subprocess.Popen([sys.executable, "-m", "specgate", *words], process_group=0) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    return code if code >= 0 else ExitCode.INTERRUPTED


def carry_out(
    request: Request, measuring: Measuring | None = None, taking_part: Mapping[str, str] = NOBODY
) -> ExitCode:
    """Carry out one run: measure, judge, store the result, and print it.

    `measuring` takes the place of `measure_plan`, with this machine. `taking_part`: keys of the fingerprint that name
    who measures in its place.

    Prints the run folder first, and the report, the errors, the run folder and the verdict last. Whatever goes wrong
    after the first block, the blocks that were measured stay in the run folder and are judged as they are. A run whose
    ending was cut is finished, and nothing else is done where its verdict stands.

    Before the first block, raises OrderRefused for a full run whose micro gates are not green, UsageError for a request
    that cannot be carried out, and InvalidResult if the ledger was changed.
    """
    if request.resume and (code := finish_cut_ending(request, request.resume)) is not None:
        return code
    folder = request.resume.absolute().parent if request.resume else request.out
    with isolated(request.isolate or began_isolated(request), folder, *request.archives):
        return carry_out_here(request, measuring, taking_part)


def began_isolated(request: Request) -> bool:
    """True if the request continues a run whose engines ran in a sandbox."""
    folder = request.resume
    return folder is not None and (folder / RUN).is_file() and FACT in RunFolder(folder).read_run().fingerprint


def carry_out_here(request: Request, measuring: Measuring | None, taking_part: Mapping[str, str]) -> ExitCode:
    """Carry out one run under the sandbox that is current, if any: see `carry_out`."""
    resolved = resolve_request(request, taking_part)
    folder, run = begin_or_resume(resolved)
    green = previous_green(run, resolved.config, resolved.ledger.read().entries)
    for line in before_measuring(run, resolved):
        echo(line, err=True)
    if FACT in run.fingerprint:
        echo(f"engines run in {run.fingerprint[FACT]}")
    echo(f"run folder {folder.path}")
    for line in (*own_prompts(resolved.prompts), *time_limits(resolved.plan)):
        echo(line)
    measured = with_answers((measuring or measure_plan)(resolved, folder, run), resolved, folder)
    run, plan = conclude_and_judge(resolved, run, measured, green)
    run, ledger_lines, stopped = write_and_record(resolved, folder, run, plan, measured.stopped)
    errors = (*measured.failures.values(), *([reason_of(stopped)] if stopped is not None else []))
    policy, plain = resolved.config.policy, request.plain
    end = ending(run) if stopped is measured.stopped or stopped is None else (NOT_STORED, code_of(stopped))
    return print_result(folder, run, policy, end, errors, ledger_lines, plain)


def finish_cut_ending(request: Request, path: Path) -> ExitCode | None:
    """Finish the ending of the run in the folder `path`, and print the result. None if none was cut, or if the run is
    to be continued then.
    """
    if (finished := finish_cut(path, Ledger(path.absolute().parent, request.archives))) is None:
        return None
    run, config, end, lines = finished
    if run.status != "complete" or request.longer:
        return None
    echo(f"finished the ending of {path.name}, which had been cut", err=True)
    return print_result(RunFolder.open(path), run, config.policy, end, run.failures.values(), lines, request.plain)


def before_measuring(run: Run, resolved: Resolved) -> Iterator[str]:
    """Yield what stands in the way of a green verdict beforehand: warnings, and what no rule will judge."""
    yield from (f"warning: {warning}" for warning in run.warnings)
    policy = resolved.config.policy
    for gap in foreseeable(resolved.plan.cells, policy, kinds_of(policy)):
        if gap.why is None:
            yield f"warning: no required rule of {policy.name} judges {in_words(gap)}: the run cannot be green (exit 8)"
    for why in nowhere(policy, resolved.plan.cells).values():
        yield f"warning: a required rule of {policy.name} selects nothing: {why}: the run cannot be green (exit 8)"


def resolve_request(request: Request, taking_part: Mapping[str, str] = NOBODY) -> Resolved:
    """Find out what the request asks for, or read it back from the run folder to be resumed. Nothing is written yet."""
    ledger = Ledger(request.resume.absolute().parent if request.resume else request.out, request.archives)
    config = read_back(request) if request.resume else resolve(request)
    if request.resume:
        check_resumable(request.resume, ledger, longer=request.longer)
    software = software_of(config)
    software = replace(software, facts={**software.facts, **taking_part})
    promotion = promotion_of(request, config, ledger, software)
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    return Resolved(request, config, ledger, promotion, plan, fitting_prompts(plan, config), software)


def begin_or_resume(resolved: Resolved) -> tuple[RunFolder, Run]:
    """Create the run folder, or open the one to be resumed. The run that is returned has no figures yet."""
    request, config, promotion = resolved.request, resolved.config, resolved.promotion
    if request.resume:
        folder, run = resume(request, config, resolved.ledger, resolved.plan, resolved.prompts, resolved.software)
    else:
        folder, run = begin(
            request, config, resolved.plan, resolved.prompts, promotion, resolved.software, resolved.ledger
        )
    return folder, replace(run, promotion=promotion)


def measure_plan(resolved: Resolved, folder: RunFolder, run: Run) -> Measured:
    """Run the rounds that the journal lacks, while the machine is being watched.

    Points that the journal shows to have stopped early are not continued.
    """
    config, plan, request = resolved.config, resolved.plan, resolved.request
    with folder.lock(), progress(request.plain, plan.scenarios) as report:
        already = early_stop.not_continued(plan, run, config.policy, folder.journal())
        left, may_stop = early_stop.truncated_plan(plan, already), stop_check(run, plan, config.policy)
        admit = admission(request, config, resolved.ledger, resolved.promotion, resolved.software)
        sample = sampling(config, resolved.ledger, resolved.promotion, resolved.software)
        runner = Runner(
            left, resolved.prompts, config, folder, report, may_stop, admit, sample, bandwidth=run.bandwidth
        )
        return watched(runner, folder, config, resolved.software)


def with_answers(measured: Measured, resolved: Resolved, folder: RunFolder) -> Measured:
    """`measured` with the answers to questions that have a key, which are stored."""
    if measured.journal is None:
        return measured
    file = tokenizer_of(resolved.config.pair)
    about = {key: of_point.about for key, of_point in resolved.prompts.items()}
    blocks, opened = measured.journal.blocks, partial(read_tokenizer, file) if file else lambda: None
    answers = tuple(answers_of(resolved.plan, about, blocks, opened))
    with folder.lock():
        for answer in answers:
            folder.append(answer)
    return replace(measured, journal=replace(measured.journal, answers=answers))


def watched(runner: Runner, folder: RunFolder, config: Config, software: Software) -> Measured:
    """Run what the runner has to run, while the machine is being watched."""
    stopped: Stopped = None
    ports = measured_ports(config)

    def beside(gpus: Sequence[str]) -> AbstractContextManager[None]:
        return watching(folder.watch_file, runner.worker_generation + 1, gpus, ports=ports)

    try:
        runner.run(beside)
        check_unchanged(software, config)
    except (SpecgateError, KeyboardInterrupt) as error:
        stopped = error
    try:
        journal = folder.journal()
    except InvalidResult as error:
        journal, stopped = None, error
    return Measured(journal, runner.failures, stopped, runner.evidence.sampled_after)


def measured_ports(config: Config) -> tuple[int, ...]:
    """The ports of this machine on which programs listen that the run attaches to."""
    backend = plugins.backend(config.backend)
    if not isinstance(backend, DrivesAnotherEngine):
        return ()
    option_sets = [engine_options(config, scenario) for scenario in config.scenarios.values()]
    return tuple(dict.fromkeys(port for options in option_sets for port in backend.local_ports(options)))


def stop_check(run: Run, plan: Plan, policy: Policy) -> MayStop:
    """The function that the runner calls at the interim looks of a point to learn whether it may stop there."""

    def may_stop(point: Point, journal: Journal) -> Look:
        alone = replace(plan, rounds=tuple(plan.rounds_of(point)))
        look = Look(0, decided=False)
        for _, looks in early_stop.interim_looks(alone, run, policy, journal):
            for look in looks:
                if look.decided:
                    break
        return look

    return may_stop


def conclude_and_judge(resolved: Resolved, run: Run, measured: Measured, green: Entry | None) -> tuple[Run, Plan]:
    """The run with figures, verdicts and what differs from the last green run, and the plan without stopped rounds.
    Nothing is written.

    There are neither figures nor verdicts if the samples cannot be trusted. `green`: the ledger's entry of the last
    green run, or None.
    """
    config, plan, journal = resolved.config, resolved.plan, measured.journal
    if journal is not None:
        early = early_stop.ended_early(plan, run, config.policy, journal)
        run, plan = replace(run, ended_early=early), early_stop.truncated_plan(plan, early)
    run = conclude(run, plan, config, measured)
    run = judge(run, config.policy) if journal is not None else run
    return replace(run, last_green=compared(run, green, resolved.ledger.folder)), plan


def write_and_record(
    resolved: Resolved, folder: RunFolder, run: Run, plan: Plan, stopped: Stopped
) -> tuple[Run, list[str], Stopped]:
    """Decide how the run ends, enter it in the ledger, and write its files and reports.

    Returns the run as it was written, the lines that the ledger has to say, and what stopped the run. If nothing had
    stopped it, a file that cannot be written or a ledger that was changed does.
    """
    lines: list[str] = []
    try:
        with folder.lock():
            run, decided = decide(run, plan, resolved.config, folder, reports=resolved.request.reports)
            lines = store(folder, decided, run, resolved.config, resolved.ledger)
    except (EnvironmentRefused, InvalidResult) as error:
        if (folder.path / ENDING).is_file():
            verdict, code = ending(run)
            what_is_left = f"{resume_command(run, folder.path)} stores what is missing"
            lines = [f"verdict {verdict} (exit {int(code)}) was reached and is kept: {what_is_left}"]
        stopped = stopped or error
    return run, lines, stopped


def print_result(
    folder: RunFolder,
    run: Run,
    policy: Policy,
    end: tuple[str, ExitCode],
    errors: Iterable[str],
    ledger_lines: list[str],
    plain: bool,
) -> ExitCode:
    """Print the report, the errors that its headline lacks (on stderr) and the last lines.

    `end`: verdict and exit code, which is returned. A refused request is an error in any case.
    """
    report = plugins.report("plain" if plain else "console")
    echo(report.render(run, policy), coloured=True)
    in_headline = next(iter(run.failures.values()), None) if end[1] is not ExitCode.USAGE else None
    for why in dict.fromkeys(why for why in errors if why != in_headline):
        echo(f"error: {why}", err=True)
    for line in closing_lines(run, folder.path, end, ledger_lines):
        echo(line)
    return end[1]

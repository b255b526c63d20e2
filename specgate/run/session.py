"""One run from request to exit code.

Request ─► Config, Plan ─► Runner (journal) ─► measurement ─► gates ─► run.json, gates.json, reports
"""

from __future__ import annotations

from dataclasses import replace

import click

from specgate import plugins
from specgate.core import (
    Plan,
    Point,
    Policy,
    Run,
)
from specgate.errors import EnvironmentRefused, ExitCode, InvalidResult, OrderRefused, SpecgateError
from specgate.files.journal import Journal
from specgate.machine import inventory
from specgate.machine.monitor import watching
from specgate.planning.plan import build_plan
from specgate.planning.request import Request
from specgate.planning.resolution import read_back, resolve
from specgate.promotion.admission import admission, promotion_of, record
from specgate.promotion.ledger import Ledger
from specgate.promotion.since_last_green import compared, previous_green
from specgate.run import early_stop
from specgate.run.beginning import begin, fitting_prompts, resume
from specgate.run.ending import conclude, recorded_as, sentence, write
from specgate.run.progress import progress
from specgate.run.recompute import Stopped, ending, judge
from specgate.run.runner import MayStop, Runner


def carry_out(request: Request) -> ExitCode:
    """Measure and judge; print the run folder and the verdict last.

    Whatever goes wrong after the first block, what was measured stays in the run folder and is judged as it is.
    """
    config = read_back(request) if request.resume else resolve(request)
    ledger = Ledger(request.resume.absolute().parent if request.resume else request.out)
    promotion = promotion_of(request, config, ledger)
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    prompts = fitting_prompts(plan, config)
    folder, run = (
        resume(request, config, prompts) if request.resume else begin(request, config, plan, prompts, promotion)
    )
    run = replace(run, promotion=promotion)
    green = previous_green(run, config, ledger.read().entries)
    click.echo(f"run folder {folder.path}")
    stopped: Stopped = None
    with folder.lock(), progress(request.plain) as report:
        known = early_stop.ended_early(plan, run, config.policy, folder.journal())
        left, may_stop = early_stop.without(plan, known), early_stop_of(run, plan, config.policy)
        admit = admission(request, config, ledger, promotion)
        runner = Runner(left, prompts, config, folder, report, may_stop, admit)
        try:
            with watching(folder.watch_file, runner.worker_generation + 1, inventory.visible_gpu_uuid()):
                runner.run()
        except (SpecgateError, KeyboardInterrupt) as error:
            stopped = error
    early = early_stop.ended_early(plan, run, config.policy, folder.journal())
    run, plan = replace(run, ended_early=early), early_stop.without(plan, early)
    run = judge(conclude(run, plan, config, folder, runner, stopped), config.policy)
    run = replace(run, last_green=compared(run, green, ledger.folder))
    said: list[str] = []
    try:
        run = write(run, plan, config, folder, ending(run, stopped), reports=request.reports)
        if not isinstance(stopped, OrderRefused):  # such a run has measured nothing
            said = record(run, config, folder.path, ledger, *recorded_as(run, stopped))
    except (EnvironmentRefused, InvalidResult) as error:
        stopped = stopped or error
    click.echo(plugins.report("plain" if request.plain else "console").render(run, config.policy))
    for why in dict.fromkeys((*runner.failures.values(), *([sentence(stopped)] if stopped is not None else []))):
        click.echo(f"error: {why}", err=True)
    verdict, code = ending(run, stopped)
    for line in said:
        click.echo(line)
    click.echo(f"run folder {folder.path}")
    click.echo(f"verdict {verdict} (exit {int(code)})")
    return code


def early_stop_of(run: Run, plan: Plan, policy: Policy) -> MayStop:
    """What the runner asks at the interim looks of a point."""

    def may_stop(point: Point, journal: Journal) -> bool:
        alone = replace(plan, rounds=tuple(plan.rounds_of(point)))
        return bool(early_stop.ended_early(alone, run, policy, journal))

    return may_stop

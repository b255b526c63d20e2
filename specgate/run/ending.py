"""After the last block: what the run amounts to, its reports, and what the ledger will say of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from specgate import plugins
from specgate.analysis.verdict import overall
from specgate.core import (
    Plan,
    Run,
    State,
)
from specgate.errors import ExitCode, SpecgateError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.machine import inventory
from specgate.machine.monitor import snapshot
from specgate.run.beginning import now
from specgate.run.recompute import Stopped, ending, judgement, speculation_blocks, with_figures
from specgate.run.runner import Runner


def recorded_as(run: Run, stopped: Stopped) -> tuple[State, ExitCode]:
    """What the ledger says of a run. One that was stopped proves nothing, unless what stopped it does."""
    _, code = ending(run, stopped)
    if stopped is None:
        return overall(run)[0], code
    proves = {ExitCode.ENV_REJECTED: State.ENV_REJECTED, ExitCode.INVALID: State.INVALID}
    return proves.get(code, State.INCONCLUSIVE), code


def sentence(stopped: SpecgateError | KeyboardInterrupt) -> str:
    return str(stopped) or "interrupted"


def conclude(
    run: Run,
    plan: Plan,
    config: Config,
    folder: RunFolder,
    runner: Runner,
    stopped: Stopped,
) -> Run:
    """The journal, reduced: cells, comparisons, and what is missing."""
    environment = {**run.environment, "env_after": snapshot(inventory.visible_gpu_uuid())}
    folder.write_json("env.json", environment)
    run = with_figures(run, plan, config.policy, folder.journal())
    facts = next(iter(run.engines.values()), None)
    incomplete = {c.cell.point.key for c in run.cells if c.status != "ok"}
    old_failures = {k: v for k, v in run.failures.items() if k in incomplete}
    cut_short = {"run": sentence(stopped)} if stopped is not None else {}
    if isinstance(stopped, KeyboardInterrupt):
        status: Literal["interrupted", "partial", "complete"] = "interrupted"
    else:
        status = "partial" if stopped is not None or incomplete else "complete"
    return replace(
        run,
        status=status,
        ended=now(),
        fingerprint={
            **run.fingerprint,
            "target_sha256": facts.target_sha256 if facts else None,
            "draft_sha256": facts.draft_sha256 if facts else None,
            "device": facts.device if facts else None,
        },
        environment=environment,
        failures={**old_failures, **runner.failures, **cut_short},
    )


def write(
    run: Run, plan: Plan, config: Config, folder: RunFolder, end: tuple[str, ExitCode], *, reports: bool = True
) -> Run:
    """Reports first, run.json last: a `complete` run.json means that everything else is there.

    Returns the run with the hashes of what was there before the reports.
    """
    folder.write_json("env.json", run.environment)
    folder.write_json("gates.json", judgement(run, config.policy, end))
    run = replace(run, files=folder.ground_hashes())
    for name in plugins.registered("specgate.reports") if reports else ():
        report = plugins.report(name)
        if report.filename:
            folder.write_text(report.filename, report.render(run, config.policy))
    folder.write_run(run, {"eagle_speculation": speculation_blocks(run, plan, folder.journal())})
    folder.write_manifest()
    return run

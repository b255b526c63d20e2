"""One run from request to exit code.

Request ─► Config, Plan ─► Runner (journal) ─► measurement ─► gates ─► run.json, gates.json, reports
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import click

from specgate import __version__, plugins
from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.analysis.machine_conditions import conditions_of
from specgate.analysis.perf_invariants import certificates
from specgate.analysis.reduce import eagle_speculation, measure
from specgate.analysis.speedup_limits import with_ceilings
from specgate.analysis.verdict import overall
from specgate.core import (
    Block,
    EngineFacts,
    Margin,
    Order,
    Plan,
    Point,
    Policy,
    Run,
    State,
    Verdict,
)
from specgate.errors import EnvironmentRefused, ExitCode, InvalidResult, OrderRefused, SpecgateError, UsageError
from specgate.files.run_folder import Config, RunFolder, label_of, to_plain
from specgate.machine import inventory, noise_passport
from specgate.machine.bandwidth import bandwidth_of
from specgate.machine.monitor import snapshot, watching
from specgate.machine.selftest_stamp import last_green
from specgate.pairs.resolve import target_limits
from specgate.planning.plan import build_plan, check_limits
from specgate.planning.policy import near_tie_margin
from specgate.planning.prompts import Prompts, build_prompts
from specgate.planning.request import Request
from specgate.planning.resolution import read_back, resolve
from specgate.promotion.admission import admission, order_of, record
from specgate.promotion.ledger import Ledger
from specgate.promotion.since_last_green import compared, previous_green
from specgate.run import early_stop
from specgate.run.early_stop import Journal
from specgate.run.progress import progress
from specgate.run.runner import Ended, Runner, whole_rounds


def carry_out(request: Request) -> ExitCode:
    """Measure and judge; print the run folder and the verdict last.

    Whatever goes wrong after the first block, what was measured stays in the run folder and is judged as it is.
    """
    config = read_back(request) if request.resume else resolve(request)
    ledger = Ledger(request.resume.absolute().parent if request.resume else request.out)
    order = order_of(request, config, ledger)
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    prompts = fitting_prompts(plan, config)
    folder, run = resume(request, config, prompts) if request.resume else begin(request, config, plan, prompts, order)
    run = replace(run, order=order)
    green = previous_green(run, config, ledger.read().entries)
    click.echo(f"run folder {folder.path}")
    stopped: Stopped = None
    with folder.lock(), progress(request.plain) as report:
        known = early_stop.ended_early(plan, run, config.policy, journal_of(folder))
        left, ended = early_stop.without(plan, known), ending_of(run, plan, config.policy)
        admit = admission(request, config, ledger, order)
        runner = Runner(left, prompts, config, folder, report, ended, admit)
        try:
            with watching(folder.watch_file, runner.session + 1, inventory.visible_gpu_uuid()):
                runner.run()
        except (SpecgateError, KeyboardInterrupt) as error:
            stopped = error
    early = early_stop.ended_early(plan, run, config.policy, journal_of(folder))
    run, plan = replace(run, ended_early=early), early_stop.without(plan, early)
    run = judge(conclude(run, plan, config, folder, runner, stopped), config.policy)
    run = replace(run, last_green=compared(run, green, ledger.folder))
    said: list[str] = []
    try:
        run = write(run, plan, config, folder, ending(run, stopped))
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


def journal_of(folder: RunFolder) -> Journal:
    return Journal(folder.blocks(), folder.margins(), folder.engines())


def ending_of(run: Run, plan: Plan, policy: Policy) -> Ended:
    """What the runner asks at the looks of a point."""

    def ended(
        point: Point, blocks: Sequence[Block], margins: Sequence[Margin], engines: Mapping[str, EngineFacts]
    ) -> bool:
        alone = replace(plan, rounds=tuple(plan.rounds_of(point)))
        return bool(early_stop.ended_early(alone, run, policy, Journal(blocks, margins, engines)))

    return ended


Stopped = SpecgateError | KeyboardInterrupt | None


def ending(run: Run, stopped: Stopped) -> tuple[str, ExitCode]:
    """The word and the exit code that a run ends with; a run that was stopped has reached no verdict."""
    if stopped is not None:
        return "not reached", stopped.exit_code if isinstance(stopped, SpecgateError) else ExitCode.INTERRUPTED
    state, code = overall(run)
    return code.name if code is ExitCode.BACKEND_ERROR else state.value, code


def recorded_as(run: Run, stopped: Stopped) -> tuple[State, ExitCode]:
    """What the ledger says of a run. One that was stopped proves nothing, unless what stopped it does."""
    _, code = ending(run, stopped)
    if stopped is None:
        return overall(run)[0], code
    proves = {ExitCode.ENV_REJECTED: State.ENV_REJECTED, ExitCode.INVALID: State.INVALID}
    return proves.get(code, State.INCONCLUSIVE), code


def sentence(stopped: SpecgateError | KeyboardInterrupt) -> str:
    return str(stopped) or "interrupted"


# ── before the loop ──────────────────────────────────────────────────────────────────────────────────────────────────


def fitting_prompts(plan: Plan, config: Config) -> dict[str, Prompts]:
    """Point key → its prompts; all of them before anything is measured, so that what cannot run is refused at once.

    Raises UsageError where a context is longer than the pair allows or a text source has too few prompts.
    """
    limits = {name: target_limits(config.pair, s.rope) for name, s in config.scenarios.items()}
    check_limits(plan, {name: positions for name, (positions, _) in limits.items()}, config.pair.name)
    file = config.pair.target / "tokenizer.json"
    tokenizer = file if file.is_file() else None
    return {
        p.key: build_prompts(config.scenarios[p.scenario], p.context, p.batch, tokenizer, limits[p.scenario][1])
        for p in plan.points
    }


def begin(
    request: Request, config: Config, plan: Plan, prompts: Mapping[str, Prompts], order: Order
) -> tuple[RunFolder, Run]:
    """Write everything down before anything is measured.

    Raises UsageError where the policy has a margin below what the noise passport says can be told apart.
    """
    passport = noise_passport.passport_of(request.out)
    noise_passport.check_margins(config.policy, plan, passport)
    environment = {
        **inventory.environment(),
        "selftest": last_green(request.out),
        "env_before": snapshot(inventory.visible_gpu_uuid()),
        "env_after": None,
    }
    tree = inventory.source_tree_sha256()
    folder = RunFolder.create(request.out, request.kind, label_of(tuple(config.scenarios)), tree)
    run = Run(
        id=folder.id,
        kind=request.kind,
        status="running",
        started=now(),
        ended=None,
        argv=("specgate", *request.argv),
        tool_version=__version__,
        fingerprint={"source_tree_sha256": tree, "config_sha256": config.digest},
        environment=environment,
        scenarios=config.scenarios,
        pair=config.pair,
        engines={},
        prompts={key: p.describe() for key, p in prompts.items()},
        cells=(),
        comparisons=(),
        failures={},
        warnings=noise_passport.warnings(passport),
        mde=noise_passport.effects(plan, passport),
        bandwidth=bandwidth_of(request.out),
        order=order,
    )
    folder.write_config(config)
    folder.write_json("env.json", environment)
    folder.write_run(run)
    return folder, run


def resume(request: Request, config: Config, prompts: Mapping[str, Prompts]) -> tuple[RunFolder, Run]:
    """An unfinished run, on the ground it was started on: blocks of two versions must not be paired."""
    assert request.resume is not None
    folder = RunFolder.open(request.resume)
    run = folder.read_run()
    before = {**run.fingerprint, **{key: about["sha256"] for key, about in run.prompts.items()}}
    now_is = {"source_tree_sha256": inventory.source_tree_sha256(), "config_sha256": config.digest}
    now_is |= {key: p.sha256 for key, p in prompts.items()}
    for key, value in now_is.items():
        if before[key] != value:
            message = f"{folder.path}: {key}: {before[key]}: it is {value} now"
            raise UsageError(message, hint="start a new run: blocks of two versions must not be paired")
    return folder, run


# ── after the loop ───────────────────────────────────────────────────────────────────────────────────────────────────


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
    run = with_figures(run, plan, config, folder)
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


def with_figures(run: Run, plan: Plan, config: Config, folder: RunFolder) -> Run:
    """The run with everything that follows from its samples, which is the same at any later time."""
    early = early_stop.ended_early(plan, run, config.policy, journal_of(folder))
    plan, engines = early_stop.without(plan, early), folder.engines()
    blocks = whole_rounds(plan, folder.blocks())
    forced = any(facts.acceptance == "forced" for facts in engines.values())
    cells, comparisons = measure(plan, blocks, folder.margins(), near_tie_margin(config.policy), forced=forced)
    found = replace(
        run,
        engines=engines,
        cells=cells,
        comparisons=comparisons,
        budgets=cycle_budgets(plan, cells, comparisons, blocks, engines, run.bandwidth),
        certificates=certificates(plan, cells, comparisons, blocks, engines, folder.traces()),
        conditions=conditions_of(plan, blocks, folder.samples()),
        ended_early=early,
        warnings=tuple(dict.fromkeys((*run.warnings, *(w for f in engines.values() for w in warnings_of(f))))),
    )
    return with_ceilings(found, config.policy)


def speculation_blocks(run: Run, plan: Plan, folder: RunFolder) -> dict[str, object]:
    """Cell key → its `eagle_speculation` block, for outside readers of run.json."""
    blocks = whole_rounds(plan, folder.blocks())
    return {c.cell.key: block for c in run.cells if (block := eagle_speculation(c, blocks)) is not None}


def judgement(run: Run, policy: Policy, end: tuple[str, ExitCode]) -> dict[str, object]:
    """gates.json."""
    verdict, code = end
    return {
        "schema": "specgate.gates/v1",
        "run": run.id,
        "policy": to_plain(Policy, policy),
        "verdict": verdict,
        "exit_code": int(code),
        "verdicts": [to_plain(Verdict, v) for v in run.verdicts],
    }


def warnings_of(facts: EngineFacts) -> Iterator[str]:
    yield from facts.warnings
    if facts.draft_error:
        yield f"spec roles decoded plainly, since the draft could not be used: {facts.draft_error}"


def judge(run: Run, policy: Policy) -> Run:
    verdicts: list[Verdict] = []
    for rule in policy.rules:
        verdicts += plugins.gate(rule.gate).judge(rule, run)
    return replace(run, verdicts=tuple(verdicts))


def write(run: Run, plan: Plan, config: Config, folder: RunFolder, end: tuple[str, ExitCode]) -> Run:
    """Reports first, run.json last: a `complete` run.json means that everything else is there.

    Returns the run with the hashes of what was there before the reports.
    """
    folder.write_json("env.json", run.environment)
    folder.write_json("gates.json", judgement(run, config.policy, end))
    run = replace(run, files=folder.ground_hashes())
    for name in plugins.registered("specgate.reports"):
        report = plugins.report(name)
        if report.filename:
            folder.write_text(report.filename, report.render(run, config.policy))
    folder.write_run(run, {"eagle_speculation": speculation_blocks(run, plan, folder)})
    folder.write_manifest()
    return run


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

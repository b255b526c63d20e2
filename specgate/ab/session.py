"""One comparison, from the request to the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specgate import __version__, plugins
from specgate.ab.folder import FILES, AbFolder, Asked
from specgate.ab.judging import plans, result_of, schedules
from specgate.ab.recording import enter
from specgate.ab.request import AbRequest, Build, builds, check
from specgate.ab.runner import AbRunner, SideSetup, blocks_of
from specgate.api import OpenRequest
from specgate.core import Plan, Point
from specgate.core.two_builds import SIDES, SideName, TwoBuilds
from specgate.errors import ExitCode, SpecgateError, UsageError
from specgate.files.journal import Journal
from specgate.files.plain import to_plain
from specgate.files.redaction import credentials_in
from specgate.machine import inventory
from specgate.machine.bandwidth import bandwidth_of
from specgate.machine.monitor import snapshot, watching
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompts
from specgate.run.beginning import fitting_prompts, now
from specgate.run.progress import progress
from specgate.run.runner import open_request
from specgate.terminal import echo


def carry_out(request: AbRequest) -> ExitCode:
    """Measure both builds in turns, judge them, store everything and print the result.

    Before the first block, raises UsageError for a request that cannot be carried out and BackendError for a side that
    does not build. What was measured until a side failed stays in the folder, without a word for the whole.
    """
    check(request)
    with TemporaryDirectory(prefix="specgate-build-") as logs, builds(request, Path(logs)) as sides:
        asked, prompts = asked_of(request, sides)
        refuse_credentials(asked)
        folder = AbFolder.create(request.out, tuple(asked.scenarios), inventory.source_tree_sha256())
        folder.write_asked(asked)
        keep_logs(folder, Path(logs))
        echo(f"comparison folder {folder.path}")
        failure = measure(request, sides, asked, prompts, folder)
    result = conclude(folder, asked)
    report = plugins.view("ab").render(result, "plain" if request.plain else "console")
    echo(report, coloured=True)
    if failure is not None:
        echo(f"error: {failure}", err=True)
    echo(f"comparison folder {folder.path}")
    echo(f"verdict {result.verdict} (exit {int(result.code)})")
    return result.code


def asked_of(request: AbRequest, sides: Mapping[SideName, Build]) -> tuple[Asked, dict[str, Prompts]]:
    """What is going to be measured, and the prompts by the old side's point keys.

    Raises UsageError where the two sides would measure different things.
    """
    old, new = sides["old"].config, sides["new"].config
    if (old.pair.target, old.pair.draft) != (new.pair.target, new.pair.draft):
        raise UsageError(f"old measures pair {old.pair.name}, new measures {new.pair.name}", hint="name one pair")
    prompts = fitting_prompts(build_plan(tuple(old.scenarios.values()), old.backend), old)
    asked = Asked(
        sides={name: build.side for name, build in sides.items()},
        pair=old.pair,
        policy=old.policy,
        scenarios=old.scenarios,
        pairs=request.pairs,
        visits=request.visits,
        quads=request.quads,
        margins=request.margins,
        prompts={key: p.describe() for key, p in prompts.items()},
        started=now(),
        argv=("specgate", *request.argv),
        tool_version=__version__,
        bandwidth=bandwidth_of(request.out),
    )
    return asked, prompts


def refuse_credentials(asked: Asked) -> None:
    """Raise UsageError where a credential would be stored."""
    if place := next(credentials_in(to_plain(Asked, asked)), None):
        raise UsageError(f"{place}: a credential would be written", hint="name the variable: -o api_key_env=NAME")


def keep_logs(folder: AbFolder, logs: Path) -> None:
    """Store what building the sides has printed."""
    for file in sorted(logs.iterdir()):
        folder.top.write_text(f"logs/{file.name}", file.read_text(encoding="utf-8", errors="replace"))


def measure(
    request: AbRequest, sides: Mapping[SideName, Build], asked: Asked, prompts: Mapping[str, Prompts], folder: AbFolder
) -> SpecgateError | KeyboardInterrupt | None:
    """Run the whole schedule while the machine is being watched. Returns what ended it before its time."""
    pairs = schedules(asked)
    planned = plans(asked, pairs)
    setups = {name: setup_of(name, sides[name], planned[name]) for name in SIDES}
    before = {**inventory.environment(), "env_before": snapshot(inventory.visible_gpu_uuid())}
    failure: SpecgateError | KeyboardInterrupt | None = None
    uuid = inventory.visible_gpu_uuid()

    def request_of(side: SideSetup, points: Sequence[Point]) -> OpenRequest:
        return open_request(side.plan, points, sides[side.name].config, folder.sides[side.name].log(""))

    with folder.top.lock(), progress(request.plain) as report:
        runner = AbRunner(
            setups, prompts, request_of, folder, asked.policy.checks, report, blocks_of(pairs), apart=request.apart
        )
        try:
            with watching(folder.top.watch_file, 0, uuid) as watch:
                runner.run(pairs)
            if watch.size is not None and watch.sha256 is not None:
                folder.top.adopt_watch(watch.start, watch.size, watch.sha256)
            for name in SIDES:
                folder.sides[name].check()
        except (SpecgateError, KeyboardInterrupt) as error:
            failure = error
    said, code = None, None
    if failure is not None:
        said = str(failure) or "interrupted"
        code = failure.exit_code if isinstance(failure, SpecgateError) else ExitCode.INTERRUPTED
    after = {**before, "env_after": snapshot(uuid)}
    folder.write_processes(replace(runner.processes, failure=said, code=code, ended=now(), environment=after))
    return failure


def setup_of(name: SideName, build: Build, plan: Plan) -> SideSetup:
    return SideSetup(name, build.side.backend, build.side.options, build.launch, plan)


def conclude(folder: AbFolder, asked: Asked) -> TwoBuilds:
    """Reduce the journals, and write the result, its pages and the manifest."""
    journals: dict[SideName, Journal] = {name: folder.sides[name].journal() for name in SIDES}
    result = result_of(folder, asked, journals, folder.processes())
    folder.write_result(result)
    for format, file in FILES:
        folder.top.write_text(file, plugins.view("ab").render(result, format))
    folder.top.write_manifest()
    enter(folder, asked, result)
    return result

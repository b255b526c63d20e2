"""One comparison, from the request to the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specgate import __version__, plugins
from specgate.ab.folder import PAGE, AbFolder, Asked, Processes
from specgate.ab.judging import interim_looks, plans, result_of, running_until, schedules
from specgate.ab.recording import decide, store
from specgate.ab.request import USUAL_LOOKS, AbRequest, Build, builds, check
from specgate.ab.resuming import earlier, refuse_changes, resumption, without_unfinished
from specgate.ab.runner import AbRunner, SideSetup, blocks_of
from specgate.contract import Point
from specgate.contract.conditions import Sample
from specgate.contract.protocols import DrivesAnotherEngine, OpenRequest
from specgate.contract.two_builds import ACCEPTANCE, SIDES, Quantity, SideName, TwoBuilds, Word
from specgate.errors import EnvironmentRefused, ExitCode, InvalidResult, SpecgateError, UsageError
from specgate.files.json_text import to_plain
from specgate.machine import host, inventory
from specgate.machine.bandwidth import bandwidth_of
from specgate.machine.monitor import snapshot, watching
from specgate.machine.software import software
from specgate.planning.gates import near_ties
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompts
from specgate.promotion.ending import cut
from specgate.promotion.ledger import Ledger
from specgate.redaction import credentials_in
from specgate.run.beginning import fitting_prompts, now, own_prompts
from specgate.run.progress import progress
from specgate.run.runner import open_request
from specgate.run.smoke.short_run import known_lines
from specgate.run.watched_gpus import run_gpus
from specgate.sandbox.isolation import isolated
from specgate.terminal import echo


def carry_out(request: AbRequest) -> ExitCode:
    """Measure both builds in turns, judge them, store everything and print the result.

    Before the first block, raises UsageError for a request that cannot be carried out and BackendError for a side that
    does not build. What was measured until a side failed stays in the folder, without a word for the whole.
    """
    with isolated(request.run.isolate, request.run.out):
        _, result = begin(request)
    return result.code


def begin(request: AbRequest) -> tuple[AbFolder, TwoBuilds]:
    """Carry out the comparison under the sandbox that is current, if any: see `carry_out`. Returns it, as stored."""
    check(request)
    Ledger(request.run.out).read()  # what cannot be entered in the end is not measured
    with TemporaryDirectory(prefix="specgate-build-") as logs, builds(request, Path(logs)) as sides:
        settings, prompts = asked_of(request, sides)
        refuse_credentials(settings)
        folder = AbFolder.create(request.run.out, tuple(settings.scenarios), inventory.source_tree_sha256())
        with folder.top.lock():
            folder.write_asked(settings)
            keep_logs(folder, Path(logs))
            processes = Processes(beside=not (request.apart or request.run.isolate))
            return folder, finish(request.run.plain, sides, settings, prompts, folder, processes)


def go_on(path: Path, more: int | None, plain: bool, request_of: Callable[[Sequence[str]], AbRequest]) -> ExitCode:
    """Continue the comparison in the folder `path`: see `resuming.earlier`. The exit code is that of the whole.

    One whose ending was cut is finished, and nothing else is done where its word stands.
    """
    folder = AbFolder.open(path, read_only=False)
    with folder.top.lock(), TemporaryDirectory(prefix="specgate-build-") as logs:
        if (decided := cut(path)) is not None:
            result = store(folder, decided)
            if more is None and folder.processes().failure is None:
                print_result(folder, result, plain)
                return result.code
        before = earlier(folder, more, request_of)
        hiding = isolated(before.request.run.isolate, path.absolute().parent)
        with hiding, builds(before.request, Path(logs)) as sides:
            again, prompts = asked_of(before.request, sides)
            refuse_changes(path, before.stored, again)
            folder.top.put_manifest_aside()
            folder.top.lines(Sample)
            folder.write_asked(before.asked)
            processes = without_unfinished(folder, before.processes)
            resumed = (*processes.resumed, resumption(before, now()))
            processes = replace(processes, failure=None, code=None, ended="", resumed=resumed)
            return finish(plain, sides, before.asked, prompts, folder, processes).code


def finish(
    plain: bool,
    sides: Mapping[SideName, Build],
    settings: Asked,
    prompts: Mapping[str, Prompts],
    folder: AbFolder,
    processes: Processes,
) -> TwoBuilds:
    """Measure what is still to be measured, judge everything, store and print it."""
    echo(f"comparison folder {folder.path}")
    for line in own_prompts(prompts):
        echo(line)
    failure = measure(plain, sides, settings, prompts, folder, processes)
    result = result_of(folder, settings, folder.journals(), folder.processes())
    problem = None
    try:
        store(folder, decide(folder, settings, result))
    except (EnvironmentRefused, InvalidResult) as error:
        problem = error
    print_result(folder, result, plain, failure)
    if problem is not None:
        raise problem
    return result


def print_result(
    folder: AbFolder, result: TwoBuilds, plain: bool, failure: SpecgateError | KeyboardInterrupt | None = None
) -> None:
    """Print the report, what ended the measuring (on stderr) and the last lines."""
    report = plugins.view("ab").render(result, "plain" if plain else "console")
    echo(report, coloured=True)
    if isinstance(failure, SpecgateError):
        echo(f"error: {failure}", err=True)
    for line in closing_lines(result, folder.path):
        echo(line)


def closing_lines(result: TwoBuilds, folder: Path) -> Iterator[str]:
    """Yield the last lines that are printed of the comparison in `folder`: where it lies, what to do, the verdict."""
    here = plugins.registered("specgate.backends")  # a side's own build may have a back end that is not installed here
    for name, side in result.sides.items():
        for cause in (known_lines(side.backend, folder / name / "logs") if side.backend in here else None) or ():
            lines = "1 line" if cause.count == 1 else f"{cause.count:,} lines"
            yield f"{name}: {lines} of its logs: {cause.cause}: {cause.line}"
    yield f"all figures: specgate runs show {folder} --all"
    yield f"comparison folder {folder}"
    if (folder / PAGE).is_file():
        yield f"page {folder / PAGE}"
    if command := way_on(result, folder):
        yield f"next: {command}"
    yield f"verdict {result.verdict} (exit {int(result.code)})"


def way_on(result: TwoBuilds, folder: Path) -> str | None:
    """The command that may tell more; None where there is none."""
    if result.word not in (None, Word.CANNOT_TELL) or result.trouble:
        return None
    if result.code is ExitCode.USAGE:
        return None  # two sides that cannot be compared
    if result.word is None:
        return f"specgate ab --resume {folder}"
    needed = [q.needed for q in result.quantities if q.decides and q.word is Word.CANNOT_TELL and q.name != ACCEPTANCE]
    known = [n for n in needed if n is not None]
    if not needed or len(known) < len(needed):
        return prompts_wanted(result, folder)
    more = max(known) - result.looks[-1].pairs
    return f"specgate ab --resume {folder} --processes {in_fours(more)}"


def in_fours(count: int) -> int:
    """At least `count`, in multiples of four, which balance every order."""
    return max(4, -(-count // 4) * 4)


def prompts_wanted(result: TwoBuilds, folder: Path) -> str | None:
    """Sentence with the number of prompts that would tell, if only acceptance lengths cannot be told.

    More processes help as long as the scenario has prompts that were not visited; then they visit the same again.
    """
    open_quantities = [q for q in result.quantities if q.decides and q.word is Word.CANNOT_TELL]
    known = [q.needed for q in open_quantities if q.needed is not None]
    if not open_quantities or len(known) < len(open_quantities) or any(q.name != ACCEPTANCE for q in open_quantities):
        return None
    if all(q.needed is not None and q.needed <= prompts_of(result, q) for q in open_quantities):
        more = max(-(-n * result.looks[-1].pairs // q.n) for q, n in zip(open_quantities, known, strict=True))
        return f"specgate ab --resume {folder} --processes {in_fours(more - result.looks[-1].pairs)}"
    fewest = min(q.n for q in open_quantities)
    return f"more prompt_sets in the scenario ({max(known)} prompts in place of {fewest}), or --acceptance-margin-pct"


def prompts_of(result: TwoBuilds, quantity: Quantity) -> int:
    """Number of prompts in the scenario of a quantity's cell."""
    name, _, batch, *_ = quantity.cell.split("/")
    return result.scenarios[name].workload.prompt_sets * int(batch.removeprefix("b"))


def asked_of(request: AbRequest, sides: Mapping[SideName, Build]) -> tuple[Asked, dict[str, Prompts]]:
    """Settings of the comparison, and the prompts by the old side's point keys.

    Raises UsageError where the two sides would measure different things.
    """
    old, new = sides["old"].config, sides["new"].config
    if (old.pair.target, old.pair.draft) != (new.pair.target, new.pair.draft):
        raise UsageError(f"old measures pair {old.pair.name}, new measures {new.pair.name}", hint="name one pair")
    looks = request.looks or USUAL_LOOKS[any(attached(build) for build in sides.values())]
    prompts = fitting_prompts(build_plan(tuple(old.scenarios.values()), old.backend), old)
    settings = Asked(
        sides={name: build.side for name, build in sides.items()},
        pair=old.pair,
        policy=old.policy,
        scenarios=old.scenarios,
        pairs=looks[-1],
        visits=request.visits,
        quads=request.quads,
        margins=request.margins,
        prompts={key: p.describe() for key, p in prompts.items()},
        started=now(),
        argv=("specgate", *request.run.argv),
        tool_version=__version__,
        bandwidth=bandwidth_of(request.run.out),
        looks=looks,
        begun_with=begun_with(sides),
    )
    if why := settings.contradiction():
        raise UsageError(why, hint="fewer --processes, --quads or --visits")
    return settings, prompts


def attached(build: Build) -> bool:
    """True if a side is a server that somebody else has started."""
    backend = plugins.backend(build.config.backend)
    return isinstance(backend, DrivesAnotherEngine) and backend.attaches(build.config.options)


def begun_with(sides: Mapping[SideName, Build]) -> dict[str, str | None]:
    """Software, host, GPU and driver that a comparison is made with. The code of sides from elsewhere is not in it."""
    installed = [b.side.backend for b in sides.values() if b.side.source is None and b.side.python is None]
    gpu = inventory.visible_gpu() or {}
    stated = {"gpu_uuid": gpu.get("uuid"), "driver": gpu.get("driver")}
    return {
        **software(installed, ()).facts,
        **{key: None if value is None else str(value) for key, value in stated.items()},
        "host": host.identity(),
    }


def refuse_credentials(settings: Asked) -> None:
    """Raise UsageError where a credential would be stored."""
    if place := next(credentials_in(to_plain(Asked, settings)), None):
        raise UsageError(f"{place}: a credential would be written", hint="name the variable: -o api_key_env=NAME")


def keep_logs(folder: AbFolder, logs: Path) -> None:
    """Store what building the sides has printed."""
    for file in sorted(logs.iterdir()):
        folder.top.write_text(f"logs/{file.name}", file.read_text(encoding="utf-8", errors="replace"))


def measure(
    plain: bool,
    sides: Mapping[SideName, Build],
    settings: Asked,
    prompts: Mapping[str, Prompts],
    folder: AbFolder,
    processes: Processes,
    *,
    until_decided: bool = True,
) -> SpecgateError | KeyboardInterrupt | None:
    """Run the schedule from look to look, as far as `processes` have not, while the machine is being watched. Returns
    what ended it before its time. `until_decided`: end after the first look that gives a word.
    """
    pairs = schedules(settings)
    planned = plans(settings, pairs)
    setups = {
        name: SideSetup(name, build.side.backend, build.side.options, build.launch, planned[name])
        for name, build in sides.items()
    }
    gpus = max((run_gpus(sides[name].config) for name in SIDES), key=len)
    before = processes.environment or {**inventory.environment(), "env_before": snapshot(gpus)}
    failure: SpecgateError | KeyboardInterrupt | None = None

    def request_of(side: SideSetup, points: Sequence[Point]) -> OpenRequest:
        return open_request(
            side.plan, points, sides[side.name].config, folder.sides[side.name].log(""), prompts.values()
        )

    with progress(plain, planned[SIDES[0]].scenarios) as report:
        checks, ties = settings.policy.checks, near_ties(settings.policy)
        runner = AbRunner(setups, prompts, request_of, folder, checks, ties, report, processes)
        try:
            with watching(folder.top.watch_file, 0, gpus):
                for look in settings.looks:
                    done, until = runner.processes.whole(), running_until(settings, look)
                    left = [pair for pair in pairs[:until] if pair.number not in done]
                    runner.run(left, blocks_of(pairs[:until]))
                    if until_decided and look < settings.pairs and decided(settings, folder, runner.processes, look):
                        break
        except (SpecgateError, KeyboardInterrupt) as error:
            failure = error
    reason, code = None, None
    if failure is not None:
        reason = str(failure) or "interrupted"
        code = failure.exit_code if isinstance(failure, SpecgateError) else ExitCode.INTERRUPTED
    after = {**before, "env_after": snapshot(gpus)}
    folder.write_processes(replace(runner.processes, failure=reason, code=code, ended=now(), environment=after))
    return failure


def decided(settings: Asked, folder: AbFolder, processes: Processes, pairs: int) -> bool:
    """True if the word after the first `pairs` process pairs is final. Where it is not, that is printed."""
    result = next(
        result for look, result, _ in interim_looks(settings, folder.journals(), processes) if look.pairs == pairs
    )
    if result.word is Word.CANNOT_TELL:
        echo(f"after {pairs} process pairs {result.word}, so more are measured: {result.reason}")
    return result.word is not Word.CANNOT_TELL

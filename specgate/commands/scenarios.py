"""`specgate scenarios`: list, show, check, and plan what a run would measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from specgate.commands.door import OpenGroup
from specgate.commands.options import LOAD, QUESTION, RUNNING, SIBLINGS, plain_option, take, take_question
from specgate.commands.servers import take_servers, urls_argument
from specgate.errors import UsageError
from specgate.terminal import console, echo

if TYPE_CHECKING:
    from specgate.contract import PairRef, Plan, Point, RunKind, Scenario
    from specgate.planning.request import Request

KINDS: Final = click.Choice(("micro", "full", "load"))


@click.group(cls=OpenGroup, above="scenarios.")
def scenarios() -> None:
    """List, show, check and plan scenarios.

    \b
    Example: specgate scenarios list
    """


@scenarios.command("list")
@plain_option("One line per scenario, fields separated by tabs.")
def list_scenarios(plain: bool) -> None:
    """List the scenarios that come with specgate.

    \b
    Example: specgate scenarios list
    """
    from specgate.planning.scenario import shipped

    if plain:
        for s in shipped():
            echo("\t".join((s.name, s.kind, s.needs, axes(s), "default" if s.default else "-", s.question)))
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("scenario", "kind", "needs", "question"):
        table.add_column(column, no_wrap=column != "question")
    for s in shipped():
        table.add_row(s.name if s.default else f"{s.name}*", s.kind, s.needs, s.question)
    console().print(table)
    echo("* runs only when named")


@scenarios.command(short_help="Print one scenario, with what it extends filled in.")
@click.argument("name", required=False)
@click.option("--kind", type=KINDS, default="micro", help="Without NAME: of which command (default: micro).")
@take("--prompts", "--format", "--context", "--batch", "--spec", *QUESTION)
def show(name: str | None, kind: RunKind, **options: Any) -> None:
    """Print the scenario NAME, which may be a file, with everything that it extends filled in.

    \b
    Example: specgate scenarios show cpu-1k-single

    With --context, --prompts and the like, the scenario that a run with these options would measure: written to a file,
    it can be named, changed and kept.
    """
    from specgate.planning.ad_hoc import asked
    from specgate.planning.defaults import machine_size
    from specgate.planning.resolution import chosen_scenarios
    from specgate.planning.scenario import dump, find

    question = take_question(options)
    if not question and name is None:
        raise UsageError("scenarios show: no scenario named", hint="give a NAME, or --context, --batch, --prompts …")
    if name is None:
        chosen = chosen_scenarios(question, (), None, kind, machine_size())
    else:
        scenario = find(name)
        chosen = asked(question, [scenario], scenario.kind, scenario.needs)
    echo("\n".join(map(dump, chosen)), nl=False)


@scenarios.command("check", short_help="Check scenario files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check_files(files: tuple[str, ...]) -> None:
    """Check scenario files and report every problem of each. Exit code 2 if there is any.

    \b
    Example: specgate scenarios check FILE
    """
    from specgate.planning.scenario import load_scenarios, variants_in_words

    problems = []
    for file in files:
        try:
            for scenario in load_scenarios(Path(file)):
                contents = f"{axes(scenario)}{own_file(scenario)}{variants_in_words(scenario.variants)}"
                echo(f"{file}: fine: {scenario.kind} scenario {scenario.name}, {contents}")
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))


@scenarios.command(short_help="Show what a run would measure, and how long it would take.")
@urls_argument
@take("--backend", *SIBLINGS, "--scenario", "--only", *QUESTION, *LOAD, *RUNNING)
@click.option("--kind", type=KINDS, help="Scenarios of which command (default: micro).")
@click.option("--machine", type=click.Choice(("cpu", "gpu")), help="Plan for this machine (default: this one).")
@plain_option("One line per point, fields separated by tabs.")
def plan(kind: RunKind | None, machine: Literal["cpu", "gpu"] | None, plain: bool, **options: Any) -> None:
    """Show what a run would measure (points, rounds and pairs of blocks), and about how many minutes it would take.

    \b
    Example: specgate scenarios plan --context 8K,32K --spec 2,3,5

    Nothing is measured. Of prompts from a file it shows how many would be measured and how long they are; that takes
    the tokenizer of a pair, or --tokenizer. With --policy it names required floors that no run can reach.
    """
    from specgate import plugins
    from specgate.contract.protocols import ChecksOptions
    from specgate.machine.inventory import has_cuda_gpu
    from specgate.planning.plan import COST, build_plan, estimate_seconds
    from specgate.planning.policy import find_policy
    from specgate.planning.request import Request
    from specgate.planning.resolution import as_requested, chosen_scenarios, one_role_at_a_time
    from specgate.planning.scenario import meant_for
    from specgate.run.reachability import out_of_reach

    take_servers(options)
    question, named = take_question(options), options["options"]
    request = Request(kind=kind or "micro", argv=(), plain=plain, out=Path(), question=question, **options)
    policy = find_policy(request.policy, plugins.gates()) if request.policy else None
    size = machine or ("gpu" if has_cuda_gpu() else "cpu")
    kind = kind or (None if request.scenarios else "micro")
    chosen = chosen_scenarios(question, request.scenarios, request.only, kind, size)
    engine = plugins.backend(request.backend) if request.backend else plugins.default_backend()
    if isinstance(engine, ChecksOptions):
        engine.check_options(named)
    chosen = as_requested(meant_for(engine.name, chosen), request, engine.name)
    chosen, lengths = with_own_prompts(chosen, engine.name, request)
    chosen = one_role_at_a_time(chosen, engine.name, named)
    planned = build_plan(chosen, engine.name)
    pair = named_pair(request, None) if request.pair or request.target or request.draft else None
    cost = COST[size].loading(pair.target) if pair else COST[size]
    seconds = estimate_seconds(planned, cost)
    show_plan(planned, seconds, size, cost.open, plain=plain)
    for line in lengths:
        echo(line)
    if policy:
        for line in out_of_reach(policy, planned):
            echo(line)


def named_pair(request: Request, usual: str | None) -> PairRef:
    """Return the pair that the command line names, else the one called `usual`. Raises UsageError for two names."""
    from specgate.pairs.resolve import refuse_two_names, resolve_pair, served_pair
    from specgate.planning.resolution import another_engine

    refuse_two_names(request.pair, request.target, request.draft, request.tokenizer)
    if request.tokenizer is not None:
        return served_pair(request.tokenizer)
    needs_draft = request.backend is None or another_engine(request.backend) is None
    name = request.pair or (None if request.target else usual)
    return resolve_pair(name, request.target, request.draft, needs_draft=needs_draft)


def with_own_prompts(chosen: list[Scenario], backend: str, request: Request) -> tuple[list[Scenario], list[str]]:
    """Return the scenarios, those with prompts from a file with the length of the longest, and a line about the prompts
    of each of their points.
    """
    from specgate.contract.scenarios.own_prompts import in_words
    from specgate.planning.plan import points_of
    from specgate.planning.resolution import another_engine, open_sets, prompts_of, settled

    others = another_engine(backend) is not None
    whole: list[Scenario] = []
    lines: list[str] = []
    for scenario in chosen:
        if scenario.workload.own:
            pair = named_pair(request, scenario.pair)
            scenario = settled(scenario, pair, any_architecture=others, most_sets=open_sets(request))
            for point in points_of(scenario, backend):
                made = prompts_of(scenario, point, pair, any_architecture=others)
                lines.append(f"{point.scenario} c{point.context} b{point.batch}: {in_words(made.about)}")
        whole.append(scenario)
    return whole, lines


COLUMNS = ("scenario", "context", "batch", "roles", "rounds", "pairs", "blocks", "min")


def show_plan(plan: Plan, seconds: dict[Point, tuple[float, float]], size: str, open_s: float, *, plain: bool) -> None:
    shortest, longest = (sum(ends) / 60 for ends in zip(*seconds.values(), strict=True))
    rows = [(*plan_row(plan, point), between(least / 60, most / 60, ".1f")) for point, (least, most) in seconds.items()]
    if plain:
        for row in (COLUMNS, *rows):
            echo("\t".join(row))
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("scenario", "roles") else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console().print(table)
    for point in (p for p in plan.points if plan.scenarios[p.scenario].schedule.by_load):
        loads = loads_in_words(plan, point)
        echo(f"{point.scenario} c{point.context} b{point.batch}: servers=apart: {loads}, {open_s:.0f} s each")
    points = f"{len(rows)} point{'s' if len(rows) > 1 else ''}"
    minutes = between(shortest, longest, ".0f")
    echo(f"{points} on {plan.points[0].backend}, about {minutes} min ({size} cost model, good to ×2)")


def loads_in_words(plan: Plan, point: Point) -> str:
    """The loads of an engine that holds one role at a time: `3–5 engine loads`. A point that is measured until it is
    decided may have more, as its time goes.
    """
    from specgate.planning.plan import least_and_most_rounds, loads_of

    rounds = [r for r in plan.rounds_of(point) if not r.warmup]
    scenario = plan.scenarios[point.scenario]
    least, most = (loads_of(rounds[:count]) for count in least_and_most_rounds(scenario))
    return f"{'at least ' + str(least) if scenario.until_decided else between(least, most)} engine loads"


def plan_row(plan: Plan, point: Point) -> tuple[str, ...]:
    """One row of the table. Warm-up rounds are shown after a plus sign; pairs are measured rounds × spec roles. Of what
    interim looks decide, it shows the least and the most.
    """
    from specgate.contract import VARIANT_MARK
    from specgate.planning.plan import least_and_most_rounds

    scenario, rounds = plan.scenarios[point.scenario], list(plan.rounds_of(point))
    variant = VARIANT_MARK + point.variant if point.variant else ""
    (least, most), warmup = least_and_most_rounds(scenario), sum(r.warmup for r in rounds)
    drafting, roles = len(scenario.grid.spec), len(scenario.roles)
    return (
        point.unvaried,
        str(point.context),
        str(point.batch),
        f"baseline{variant} {spec_range(scenario.grid.spec)}{variant}",
        f"{between(least, most)}+{warmup}",
        between(drafting * least, drafting * most),
        between(roles * (least + warmup), roles * (most + warmup)),
    )


def between(least: float, most: float, form: str = "") -> str:
    """Return both ends of a range, or one number if they read the same."""
    ends = dict.fromkeys((format(least, form), format(most, form)))
    return "–".join(ends)


def axes(scenario: Scenario) -> str:
    """The grid of a scenario in words: contexts, batches and draft lengths."""
    grid = scenario.grid
    contexts, batches = ("/".join(map(str, axis)) or "own" for axis in (grid.context, grid.batch))
    return f"context {contexts}, batch {batches}, {spec_range(grid.spec)}"


def own_file(scenario: Scenario) -> str:
    """Prompts of the scenario's file, every line of which is read: `, 80 prompts from …`. Empty where there is none.
    Raises UsageError where a line is wrong.
    """
    from specgate.contract.scenarios.own_prompts import left_out_in_words
    from specgate.planning.prompt_files.formats import prompts_in

    workload = scenario.workload
    if workload.file is None or workload.sha256 is None:
        return ""
    content = prompts_in(workload.file, workload.sha256, workload.format)
    left_out = f"; {left_out_in_words(content.left_out)}" if content.left_out else ""
    return f", {len(content.entries)} prompts from {workload.file.name} ({workload.format}){left_out}"


def spec_range(spec: tuple[int, ...]) -> str:
    """`(3,)` → `spec-3`, `(2, 3, 4)` → `spec-2..4`, `(1, 3)` → `spec-1,3`."""
    if len(spec) > 1 and spec == tuple(range(spec[0], spec[-1] + 1)):
        return f"spec-{spec[0]}..{spec[-1]}"
    return "spec-" + ",".join(map(str, spec))

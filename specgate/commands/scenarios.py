"""`specgate scenarios list|show|validate` and `specgate plan`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from specgate.errors import UsageError
from specgate.terminal import console, echo

if TYPE_CHECKING:
    from specgate.core import Plan, Point, Scenario


@click.group()
def scenarios() -> None:
    """List, show and check scenarios."""


@scenarios.command("list")
@click.option("--plain", is_flag=True, help="One line per scenario, fields separated by tabs.")
def list_scenarios(plain: bool) -> None:
    """List the scenarios that come with specgate."""
    from specgate.planning.scenario import shipped

    if plain or not sys.stdout.isatty():
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
@click.argument("name")
def show(name: str) -> None:
    """Print the scenario NAME, which may be a file, with everything that it extends filled in."""
    from specgate.planning.scenario import dump, find

    echo(dump(find(name)), nl=False)


@scenarios.command(short_help="Check scenario files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def validate(files: tuple[str, ...]) -> None:
    """Check scenario files and report every problem of each. Exit code 2 if there is any."""
    from specgate.planning.scenario import load_scenario

    problems = []
    for file in files:
        try:
            scenario = load_scenario(Path(file))
            echo(f"{file}: fine: {scenario.kind} scenario {scenario.name}, {axes(scenario)}")
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))


@click.command(short_help="Show what a run would measure, and how long it would take.")
@click.option("--backend", metavar="NAME", help="Engine that would run (default: the best one usable here).")
@click.option("--scenario", "names", multiple=True, metavar="FILE|NAME", help="Scenario to plan; may be repeated.")
@click.option("--only", metavar="GLOB", help="Only scenarios whose name matches.")
@click.option(
    "--kind", type=click.Choice(("micro", "full", "load")), help="Scenarios of which command (default: micro)."
)
@click.option("--machine", type=click.Choice(("cpu", "gpu")), help="Plan for this machine (default: this one).")
@click.option("--plain", is_flag=True, help="One line per point, fields separated by tabs.")
def plan(
    backend: str | None,
    names: tuple[str, ...],
    only: str | None,
    kind: Literal["micro", "full", "load"] | None,
    machine: Literal["cpu", "gpu"] | None,
    plain: bool,
) -> None:
    """Show what a run would measure (points, rounds and pairs of blocks), and about how many minutes it would take.

    Nothing is measured.
    """
    from specgate import plugins
    from specgate.machine.inventory import has_cuda_gpu
    from specgate.planning.plan import COST, build_plan, estimate_seconds
    from specgate.planning.scenario import select

    size = machine or ("gpu" if has_cuda_gpu() else "cpu")
    chosen = select(names, only, kind or (None if names else "micro"), size)
    engine = plugins.backend(backend) if backend else plugins.default_backend()
    planned = build_plan(chosen, engine.name)
    show_plan(planned, estimate_seconds(planned, COST[size]), size, plain=plain or not sys.stdout.isatty())


COLUMNS = ("scenario", "context", "batch", "roles", "rounds", "pairs", "blocks", "min")


def show_plan(plan: Plan, seconds: dict[Point, float], size: str, *, plain: bool) -> None:
    total = sum(seconds.values()) / 60
    rows = [(*plan_row(plan, point), f"{s / 60:.1f}") for point, s in seconds.items()]
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
    echo(f"{len(rows)} points on {plan.points[0].backend}, about {total:.0f} min ({size} cost model, good to ×2)")


def plan_row(plan: Plan, point: Point) -> tuple[str, ...]:
    """One row of the table. Warm-up rounds are shown after a plus sign; pairs are measured rounds × spec roles."""
    scenario, rounds = plan.scenarios[point.scenario], list(plan.rounds_of(point))
    measured = sum(not r.warmup for r in rounds)
    return (
        point.scenario,
        str(point.context),
        str(point.batch),
        "baseline " + spec_range(scenario.grid.spec),
        f"{measured}+{len(rounds) - measured}",
        str(measured * len(scenario.grid.spec)),
        str(sum(len(r.order) for r in rounds)),
    )


def axes(scenario: Scenario) -> str:
    """The grid of a scenario in words: contexts, batches and draft lengths."""
    grid = scenario.grid
    contexts, batches = ("/".join(map(str, axis)) for axis in (grid.context, grid.batch))
    return f"context {contexts}, batch {batches}, {spec_range(grid.spec)}"


def spec_range(spec: tuple[int, ...]) -> str:
    """`(3,)` → `spec-3`, `(2, 3, 4)` → `spec-2..4`, `(1, 3)` → `spec-1,3`."""
    if len(spec) > 1 and spec == tuple(range(spec[0], spec[-1] + 1)):
        return f"spec-{spec[0]}..{spec[-1]}"
    return "spec-" + ",".join(map(str, spec))

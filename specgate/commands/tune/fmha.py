"""`specgate tune fmha`: which way of cutting attention decodes fastest here?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.run import key_value
from specgate.errors import BackendError, UsageError

if TYPE_CHECKING:
    from specgate.core.fmha import AttentionConfig, PointSweep, Trial

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Find the fastest configuration of attention.")
@click.option("--scenario", "names", multiple=True, metavar="NAME|FILE", help="Default: the micro scenarios, both.")
@click.option("--pair", metavar="NAME|DIR", help="In place of the scenario's.")
@click.option("--config", "texts", multiple=True, metavar="KNOB:N,…", help="Try this one; may be repeated.")
@click.option("--grid", type=FILE, metavar="FILE", help="YAML with values per knob (default: the engine's own grid).")
@click.option("--steps", type=click.IntRange(4), metavar="N", help="At most so many steps per stretch.")
@click.option("--passes", default=2, show_default=True, type=click.IntRange(1), help="Over all configurations.")
@click.option("--backend", default="cupy", show_default=True)
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", help="Of the engine.")
@click.option(
    "--budget-seconds",
    default=300.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Begin nothing after that.",
)
@click.option("--out", type=FILE, default=Path("fmha_sweep.json"), show_default=True)
def fmha(
    names: tuple[str, ...],
    pair: str | None,
    texts: tuple[str, ...],
    grid: Path | None,
    steps: int | None,
    passes: int,
    backend: str,
    options: tuple[str, ...],
    budget_seconds: float,
    out: Path,
) -> None:
    """Decode the scenarios' roles under each configuration of attention, on the same prompts.

    FILE gets tokens per second, acceptance length and tile statistics of all of them, the best, and how far the default
    is from it; it is written after every configuration. Exit code 7 where a point has none that works.
    """
    from specgate.core.fmha import parse_config
    from specgate.tuning.fmha_points import read_grid
    from specgate.tuning.fmha_run import SweepRequest, carry_out

    configs = (*map(parse_config, texts), *(read_grid(grid) if grid else ()))
    named = dict(map(key_value, options))
    request = SweepRequest(names, pair, configs, steps, passes, backend, named, budget_seconds, out)
    swept: list[PointSweep] = []
    for point in carry_out(request):
        swept.append(point)
        for line in lines(point):
            click.echo(line)
    if not swept:
        raise UsageError("nothing was swept", hint="--budget-seconds was spent before an engine had loaded")
    click.echo(f"written to {out}")
    if hopeless := [point.scenario for point in swept if point.best is None]:
        raise BackendError(f"no configuration works: {', '.join(hopeless)}")


def lines(point: PointSweep) -> Iterator[str]:
    """A table of at most 100 columns, the best first, then what it says of the default."""
    yield f"{point.scenario}: {point.pair}, {point.batch} × {point.context}, {point.steps} steps per stretch"
    roles = tuple(point.best.roles) if point.best else ()
    heads = "".join(f"{role:>12}" for role in roles)
    yield f"{'configuration':<26}{heads}   ms/step  acceptance  tiles worked on  of best"
    for trial in sorted(point.trials, key=lambda t: -t.score):
        yield row(point, trial)
    if point.best is not None:
        yield f"best: {text_of(point.best.config)}; default {text_of(point.default)}: {behind(point)}"


def row(point: PointSweep, trial: Trial) -> str:
    if trial.failed is not None or point.best is None:
        return f"{text_of(trial.config):<26}  failed: {trial.failed}"[:100]
    speeds = "".join(f"{found.step_ms:12.4f}" for found in trial.roles.values())
    lengths = [f"{r.acceptance_length:.2f}" for r in trial.roles.values() if r.acceptance_length is not None]
    last = list(trial.roles.values())[-1].tiles
    share = f"{last.executed / last.total:.0%}" if last.total else ""
    of_best = f"{trial.score / point.best.score:.1%}"
    return f"{text_of(trial.config):<26}{speeds}           {'/'.join(lengths):>10}  {share:>15}  {of_best:>7}"


def behind(point: PointSweep) -> str:
    loss = point.default_loss
    return "not measured" if loss is None else f"{loss:.1%} slower" if loss else "is the best"


def text_of(config: AttentionConfig) -> str:
    return ",".join(f"{knob}:{value}" for knob, value in config.items())

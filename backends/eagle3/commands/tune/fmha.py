"""`specgate engine tune fmha`: find the attention configuration (tile sizes) that decodes fastest here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.commands.numbers import RUNS, TIME, count
from specgate.commands.options import key_value
from specgate.errors import BackendError, UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.backends.eagle3.nouns.fmha import AttentionConfig, PointSweep, Trial

FILE = click.Path(path_type=Path, dir_okay=False)


@command(short_help="Find the fastest configuration of attention.")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME|FILE",
    help="Scenario to decode; may be repeated (default: two micro scenarios).",
)
@click.option("--pair", metavar="NAME|DIR", help="Pair to use instead of the scenario's.")
@click.option("--config", "texts", multiple=True, metavar="KNOB:N,…", help="Configuration to try; may be repeated.")
@click.option("--grid", type=FILE, metavar="FILE", help="YAML file with values per knob (default: the engine's grid).")
@click.option("--steps", type=count(4), metavar="N", help="Most steps per decode run.")
@click.option("--passes", default=2, show_default=True, type=RUNS, help="Passes over all configurations.")
@click.option("--backend", default="cupy", show_default=True, metavar="NAME", help="Engine.")
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", help="Back-end option; may be repeated.")
@click.option(
    "--budget-seconds",
    default=300.0,
    show_default=True,
    type=TIME,
    help="Begin no configuration after that time.",
)
@click.option("--out", type=FILE, default=Path("fmha_sweep.json"), show_default=True, help="File for the results.")
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
    """Decode the scenarios' roles with each configuration of attention, on the same prompts, and find the fastest.

    \b
    Example: specgate engine tune fmha --pair NAME

    The file --out holds tokens per second, acceptance length and tile statistics of every configuration, the best one,
    and how much slower the default is. It is written after every configuration.

    Exit code 7 if no configuration works for some point.
    """
    from specgate.backends.eagle3.nouns.fmha import parse_config
    from specgate.backends.eagle3.tuning.fmha_sweep import SweepRequest, carry_out, read_grid

    configs = (*map(parse_config, texts), *(read_grid(grid) if grid else ()))
    named = dict(map(key_value, options))
    request = SweepRequest(names, pair, configs, steps, passes, backend, named, budget_seconds, out)
    swept: list[PointSweep] = []
    for point in carry_out(request):
        swept.append(point)
        for line in lines(point):
            echo(line)
    if not swept:
        raise UsageError("nothing was swept", hint="--budget-seconds was spent before an engine had loaded")
    echo(f"written to {out}")
    if hopeless := [point.scenario for point in swept if point.best is None]:
        raise BackendError(f"no configuration works: {', '.join(hopeless)}")


def lines(point: PointSweep) -> Iterator[str]:
    """A table at most 100 columns wide, the best configuration first, and a line that compares the default with it."""
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
    speeds = "".join(f"{timed.step_ms:12.4f}" for timed in trial.roles.values())
    lengths = [f"{r.acceptance_length:.2f}" for r in trial.roles.values() if r.acceptance_length is not None]
    last = list(trial.roles.values())[-1].tiles
    share = f"{last.executed / last.total:.0%}" if last.total else ""
    of_best = f"{trial.score / point.best.score:.1%}"
    return f"{text_of(trial.config):<26}{speeds}           {'/'.join(lengths):>10}  {share:>15}  {of_best:>7}"


def behind(point: PointSweep) -> str:
    """Say how much slower the default configuration is than the best."""
    loss = point.default_loss
    return "not measured" if loss is None else f"{loss:.1%} slower" if loss else "is the best"


def text_of(config: AttentionConfig) -> str:
    return ",".join(f"{knob}:{value}" for knob, value in config.items())

"""`specgate tune steps`: choose among products' configurations by whole steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specgate.tuning.gemms import InSteps, TunedGemm


@click.command(short_help="Choose products' configurations by the time of whole steps.")
@click.option("--pair", "name", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=32768, show_default=True, type=click.IntRange(64), help="Cached positions per slot.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1), help="Slots.")
@click.option("--spec", default=3, show_default=True, type=click.IntRange(1), metavar="K", help="Drafts.")
@click.option(
    "--budget-seconds",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Begin no weight after that.",
)
@click.option("--backend", metavar="NAME", help="Whose kernels (default: the best engine that has any).")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Of `tune gemm`, where it had one."
)
def steps(
    name: str, context: int, batch: int, spec: int, budget_seconds: float, backend: str | None, out: Path | None
) -> None:
    """Choose anew, for every weight that takes a good part of a step, among all its configurations: by the time of
    whole steps, a baseline's and a spec-K cycle's together.

    Run `tune gemm` first. Weights are random at the pair's sizes, so that nothing is loaded. What FILE holds is
    replaced weight by weight. Exit code 3 where no weight was reached within the budget.
    """
    from specgate.pairs.resolve import resolve_pair
    from specgate.tuning.gemm_tuning import refine_into, tuning_backend
    from specgate.tuning.gemms import StepsRequest

    tuner = tuning_backend(backend, here=True).gemm_tuner()
    request = StepsRequest(resolve_pair(name, None, None), context, batch, spec)
    click.echo(f"{tuner.device}, {request.pair.name}, {batch} x {context}; microseconds per step")
    done: list[InSteps] = []
    for found in refine_into(out, tuner, request, budget_seconds):
        if (steps := found.in_steps) is None:
            continue
        if not done:
            click.echo(header(found, steps))
        done.append(steps)
        click.echo(line(found, steps))
    if not done:
        click.echo("budget spent before the first weight", err=True)
        sys.exit(ExitCode.INCONCLUSIVE)


def header(found: TunedGemm, steps: InSteps) -> str:
    roles = "".join(f"{role:>10}" for role in steps.us)
    return f"configurations are {'/'.join(found.config)}\n{'weight':^16}{'from':>10}{'to':>10}{roles}   gain"


def line(found: TunedGemm, steps: InSteps) -> str:
    """At most 80 columns. The gain is over both steps."""
    times = "".join(f"{us:>10.1f}" for us in steps.us.values())
    cuts = f"{text(steps.before):>10}{text(found.config):>10}"
    return f"{found.n:>7} x {found.k:<6}{cuts}{times}{steps.gain:>7.1%}"


def text(config: Mapping[str, int]) -> str:
    return "/".join(str(value) for value in config.values())

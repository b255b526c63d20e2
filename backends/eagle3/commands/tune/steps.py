"""`specgate engine tune steps`: choose the configurations of matrix products by the time of whole steps."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.commands.numbers import DRAFTED, TIME
from specgate.errors import ExitCode
from specgate.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specgate.backends.eagle3.nouns.gemms import InSteps, TunedGemm


BACKEND = click.option(
    "--backend", metavar="NAME", help="Back end whose kernels are tuned (default: the best one that has any)."
)
BUDGET = click.option(
    "--budget-seconds",
    type=TIME,
    default=600.0,
    show_default=True,
    metavar="S",
    help="Begin no weight after that time.",
)


LEAST_CONTEXT = 64


class SlotsAndContext(click.ParamType[tuple[int, int]]):
    """`BATCHxCONTEXT` → (batch, context)."""

    name = "point"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,8})", str(value))
        if match is None or int(match[2]) < LEAST_CONTEXT:
            self.fail(f"{value}: slots x cached positions, {LEAST_CONTEXT} or more of these: 4x16384", param, ctx)
        return int(match[1]), int(match[2])


@command(short_help="Choose products' configurations by the time of whole steps.")
@click.option(
    "--pair", "name", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR", help="Pair."
)
@click.option(
    "--at",
    "points",
    type=SlotsAndContext(),
    multiple=True,
    default=("1x32768", "4x16384"),
    show_default="1x32768 and 4x16384",
    metavar="BATCHxCONTEXT",
    help="Sequences, and cached positions of each; may be repeated.",
)
@click.option("--spec", default=3, show_default=True, type=DRAFTED, metavar="K", help="Draft tokens per cycle.")
@BUDGET
@BACKEND
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File that `tune gemm --out` wrote (default: the user's).",
)
def steps(
    name: str,
    points: tuple[tuple[int, int], ...],
    spec: int,
    budget_seconds: float,
    backend: str | None,
    out: Path | None,
) -> None:
    """Choose the configurations of matrix products again, by the time of whole steps. Run `tune gemm` first.

    \b
    Example: specgate engine tune steps --pair NAME

    For every weight that takes a good part of a step, all configurations are tried. What counts is the time of a
    baseline step and a spec-K cycle together, at every point --at. How k is split is chosen once for all steps; how
    the work is moved is chosen for each number of rows that these steps have.

    The weights are random, of the pair's sizes, so that nothing has to be loaded. What FILE holds is replaced weight by
    weight. Exit code 3 if no weight was reached within the budget.
    """
    from specgate.backends.eagle3.nouns.gemms import Point, StepsRequest
    from specgate.backends.eagle3.tuning.gemm_tuning import refine_into, tuning_backend
    from specgate.pairs.resolve import resolve_pair

    tuner = tuning_backend(backend, here=True).gemm_tuner()
    at = tuple(Point(context, batch) for batch, context in dict.fromkeys(points))
    request = StepsRequest(resolve_pair(name, None, None), at, spec)
    echo(f"{tuner.device}, {request.pair.name}, {' and '.join(map(str, at))}")
    done: list[InSteps] = []
    for tuned in refine_into(out, tuner, request, budget_seconds):
        if (measured := tuned.in_steps) is None:
            continue
        if not done or {*done[-1].before} != {*tuned.config}:
            echo(header(tuned))
        done.append(measured)
        for line in lines(tuned, measured):
            echo(line)
    if not done:
        echo("no weight was chosen: the budget was spent before the first, or none takes enough of a step", err=True)
        sys.exit(ExitCode.INCONCLUSIVE)
    for step, us in done[-1].us.items():
        echo(f"{step}: {us:.1f} us per step, {done[0].before_us[step]:.1f} before")


def header(tuned: TunedGemm) -> str:
    """The two lines above the table."""
    return f"configurations are {'/'.join(tuned.config)}\n{'weight':^16}{'rows':>6}{'from':>17}{'to':>17}{'gain':>7}"


def lines(tuned: TunedGemm, steps: InSteps) -> Iterator[str]:
    """The lines of one weight, each at most 80 columns wide.

    The gain is that of all steps together, for all of the weight's configurations together.
    """
    yield f"{tuned.n:>7} x {tuned.k:<6}{'any':>6}{text(steps.before):>17}{text(tuned.config):>17}{steps.gain:>7.1%}"
    for rows, config in tuned.at_rows.items():
        yield f"{'':16}{rows:>6}{'':17}{text(config):>17}"


def text(config: Mapping[str, int]) -> str:
    return "/".join(str(value) for value in config.values())

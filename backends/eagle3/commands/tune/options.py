"""Options that the commands of `specgate engine tune` for matrix products share."""

from __future__ import annotations

import click

from specgate.commands.numbers import TIME

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

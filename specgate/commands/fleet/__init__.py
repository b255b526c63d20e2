"""`specgate fleet`: one run on many machines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.numbers import count
from specgate.commands.run import order_option, question_options, request_of, run_options
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.contract import RunKind
    from specgate.fleet.machines import Machines

_FLEET: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--on",
        default="local",
        show_default=True,
        metavar="local|ray|ray=ADDRESS",
        help="The GPUs of this host, or those of a Ray cluster's hosts.",
    ),
    click.option("--slots", type=count(most=4096), metavar="N", help="Points that are measured at the same time."),
    click.option("--task-points", type=count(), metavar="N", help="Most points that a machine is given at once."),
)


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FLEET):
        command = option(command)
    return command


@click.group(short_help="Spread one run over many GPUs and hosts.")
def fleet() -> None:
    """Spread one run over many GPUs and hosts: one run folder and one entry in the ledger at the end.

    Each point, with its baseline and all its draft lengths, is measured whole on one machine. All machines have to be
    like the one that the command is given on: GPU, driver, CPU, packages and source tree. A machine that is not is left
    out and named. What a lost machine was measuring is measured again on another one.
    """


@fleet.command(short_help="`specgate micro` on many machines.")
@question_options
@run_options
@fleet_options
def micro(**options: Any) -> None:
    """Measure a fixed number of engine steps per block, and judge them: `specgate micro` on many machines."""
    spread("micro", options)


@fleet.command(short_help="`specgate full` on many machines.")
@question_options
@run_options
@order_option
@fleet_options
def full(**options: Any) -> None:
    """Measure whole requests, once the micro gates are green: `specgate full` on many machines."""
    spread("full", options)


def spread(kind: RunKind, options: dict[str, Any]) -> None:
    from specgate.fleet.session import carry_out

    where, slots, size = options.pop("on"), options.pop("slots"), options.pop("task_points")
    request = request_of(kind, options)
    sys.exit(carry_out(request, machines_of(where, slots), size))


def machines_of(where: str, slots: int | None) -> Machines:
    """What `--on` names. Raises UsageError for anything else."""
    name, _, address = where.partition("=")
    if where == "local":
        from specgate.fleet.local import LocalMachines

        return LocalMachines(slots)
    if name == "ray":
        from specgate.fleet.ray_cluster import RayMachines

        return RayMachines(address or "auto", slots)
    raise UsageError(f"--on {where!r}: no such machines", hint="local, ray, or ray=ADDRESS of the cluster's head")

"""Options with which `micro` and `full` spread one run over many machines, and what they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.numbers import count
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.fleet.machines import Machines

FLEET: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--on",
        metavar="gpus|ray|ray=ADDRESS",
        help="Spread the points over this host's GPUs, or over those of a Ray cluster.",
    ),
    click.option("--slots", type=count(most=4096), metavar="N", help="With --on: points measured at the same time."),
    click.option("--task-points", type=count(), metavar="N", help="With --on: most points given to a machine at once."),
)


def take_machines(options: dict[str, Any]) -> tuple[Machines, int | None] | None:
    """Return the machines that a command line spreads its run over, and the most points of a task. The options lose
    what says so. None where the run stays on this machine.

    Raises UsageError for machines that are not known, and for --slots or --task-points without --on.
    """
    where, slots, size = options.pop("on"), options.pop("slots"), options.pop("task_points")
    if where is None:
        for name, value in (("--slots", slots), ("--task-points", size)):
            if value is not None:
                raise UsageError(f"{name} {value} without --on", hint="--on gpus, or --on ray")
        return None
    return machines_of(where, slots), size


def machines_of(where: str, slots: int | None) -> Machines:
    """Return what `--on` names. Raises UsageError for anything else."""
    name, _, address = where.partition("=")
    if where == "gpus":
        from specgate.fleet.local import LocalMachines

        return LocalMachines(slots)
    if name == "ray":
        from specgate.fleet.ray_cluster import RayMachines

        return RayMachines(address or "auto", slots)
    raise UsageError(f"--on {where!r}: no such machines", hint="gpus, ray, or ray=ADDRESS of the cluster's head")

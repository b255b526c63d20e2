"""`specgate micro`, `specgate full` and `specgate load`: measure an engine and judge it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.door import command
from specgate.commands.numbers import count
from specgate.commands.options import LOAD, PATH, QUESTION, RUNNING, SIBLINGS, Option, take, take_question
from specgate.commands.servers import take_servers, urls_argument
from specgate.errors import UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.contract import RunKind
    from specgate.fleet.machines import Machines
    from specgate.planning.request import Request

_RUN: Final = (
    take(*RUNNING),
    click.option("--resume", type=PATH, metavar="RUN", help="Continue an unfinished run folder."),
    click.option(
        "--archive",
        "archives",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        multiple=True,
        metavar="DIR",
        help="Folder that earlier run folders were moved to; may be repeated.",
    ),
)


_FLEET: Final = (
    click.option(
        "--on",
        metavar="gpus|ray|ray=ADDRESS",
        help="Spread the points over this host's GPUs, or over those of a Ray cluster.",
    ),
    click.option("--slots", type=count(most=4096), metavar="N", help="With --on: points measured at the same time."),
)


def run_options(*others: Option, refused: Mapping[str, str] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Give a command the options of a run, and `others` at their end. `refused`: see `take`."""
    question = (name for name in QUESTION if name not in (refused or {}))
    first, last = (
        take("--backend", *SIBLINGS, "--scenario", "--only", *question, refused=refused),
        take("--isolate", "--out", "--plain", "--debug"),
    )

    def with_options(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((urls_argument, first, *_RUN, *others, last)):
            wrapped = option(wrapped)
        return wrapped

    return with_options


@command(short_help="Measure a fixed number of engine steps per block.")
@run_options(*_FLEET)
def micro(**options: Any) -> None:
    """Measure a fixed number of engine steps per block, and judge them.

    \b
    Example: specgate micro http://localhost:8000,http://localhost:8003

    These are the gates that must be green before `specgate full` may run. Without --scenario, all micro scenarios meant
    for this machine run. With --context, --batch, --spec, --prompts and the like, a question of your own is measured
    instead, or a scenario with these settings. With --on, the points are spread over many machines, which have to be
    like this one: GPU, driver, CPU, packages and source tree.
    """
    _measure("micro", options)


@command(short_help="Measure whole requests, once the micro gates are green.")
@run_options(
    *_FLEET,
    click.option(
        "--override-order", metavar="REASON", help="Begin although the micro gates are not green; REASON is recorded."
    ),
    click.option("--explore", is_flag=True, help="Begin at once: all figures, and never green (exit 8)."),
    click.option("--micro-first", is_flag=True, help="Run the micro gates first, until they are green often enough."),
    click.option("--status", is_flag=True, help="Only say whether it could begin, and which micro runs are missing."),
    click.option("--json", "as_json", is_flag=True, help="With --status: one JSON object."),
)
def full(micro_first: bool, status: bool, as_json: bool, **options: Any) -> None:
    """Measure whole requests, prefill included, and judge them.

    \b
    Example: specgate full --scenario full-32k-single --policy seed

    The run is refused (exit 5) until the policy's micro gates have been green three times in a row; of a question of
    your own, the same question in micro runs. --status says what is missing, and --micro-first runs it. --explore
    begins at once and ends NOT_JUDGED (8) with all figures. With --override-order it begins, too, and the ledger and
    the first line of every report state the REASON.
    """
    if as_json and not status:
        raise UsageError("--json without --status", hint="a run writes run.json into its folder")
    if options["explore"] and (status or options["override_order"]):
        raise UsageError(f"--explore with --{'status' if status else 'override-order'}", hint="give one of them")
    if micro_first and (other := next((name for name in NOT_FIRST if status or options.get(name)), None)):
        name = "status" if status else other.replace("_", "-")
        raise UsageError(f"--micro-first with --{name}", hint="give one of them")
    if status:
        from specgate.commands.status import show_status
        from specgate.sandbox.isolation import isolated

        fleet = take_machines(options)
        request = request_of("full", options)
        with isolated(request.isolate, request.out):
            show_status(request, fleet_of(request, fleet) if fleet else {}, as_json=as_json)
        return
    if micro_first:
        rest = dict(options)
        take_machines(rest)
        run_micro_gates(request_of("full", rest))
    _measure("full", options)


def fleet_of(request: Request, machines: Machines) -> dict[str, str]:
    """Return the key of the fingerprint that names `machines`, which are given back."""
    from specgate.fleet.session import taking_part

    try:
        return taking_part(request, machines)
    finally:
        machines.stop()


NOT_FIRST: Final = ("on", "resume", "override_order", "explore")
"""Options of a full run that leave its micro gates to somebody else."""


def run_micro_gates(request: Request) -> None:
    """Run the micro gates of a full run as often as they are missing, by the command that `--status` says.

    Each is a process of its own, since green runs of one process count once. Ends this process with the code of the
    first that is not green. Green ones that do not count are not run again: the full run says why.
    """
    from specgate.planning.defaults import machine_size, runs_of
    from specgate.promotion.standing import promotion_status
    from specgate.run.session import another_command, tune

    requests = runs_of(request, machine_size())
    for each in requests:
        if requests != [request]:
            tune(each)
        promotion = promotion_status(each).promotion
        for _ in range(promotion.needed - promotion.streak):
            echo(promotion.command)
            words = [*shlex.split(promotion.command)[1:], *(["--plain"] if request.plain else [])]
            if code := another_command(words):
                sys.exit(code)


@command(short_help="Up to which concurrency does speculation pay on a server?")
@run_options(take(*LOAD), refused={"--steps": "requests under load are whole: --new-tokens N says how long they are"})
def load(**options: Any) -> None:
    """Put a server under load, at one level after the other, with and without speculation, and judge it.

    \b
    Example: specgate load http://localhost:8000,http://localhost:8003

    Throughput, latency percentiles, goodput, and the concurrency up to which speculation pays, with its interval.
    Without --scenario, the load scenarios meant for this machine run; --batch 1,2,4,8 names the levels: so many clients
    at a time. --rate 1,2,4 has requests come at these rates. The default policy is `load`. No micro gates come before
    it.
    """
    _measure("load", options)


def _measure(kind: RunKind, options: dict[str, Any]) -> None:
    machines = take_machines(options) if kind != "load" else None
    if machines is None:
        from specgate.run.session import carry_out_each

        sys.exit(carry_out_each(request_of(kind, options)))
    from specgate.fleet.session import carry_out

    sys.exit(carry_out(request_of(kind, options), machines))


def request_of(kind: RunKind, options: dict[str, Any]) -> Request:
    """Return what a command line with the options of a run requests. Raises UsageError for an empty reason."""
    from specgate.planning.request import Request

    reason = options.get("override_order")
    if reason is not None and not reason.strip():
        raise UsageError("--override-order without a reason", hint="say why: it stands in the ledger and every report")
    take_servers(options)
    options["question"] = take_question(options)
    return Request(kind=kind, argv=tuple(sys.argv[1:]), **options)


def take_machines(options: dict[str, Any]) -> Machines | None:
    """Return the machines that a command line spreads its run over; the options lose what says so. None where the run
    stays on this machine.

    Raises UsageError for machines that are not known, and for --slots without --on.
    """
    where, slots = options.pop("on"), options.pop("slots")
    if where is None:
        if slots is not None:
            raise UsageError(f"--slots {slots} without --on", hint="--on gpus, or --on ray")
        return None
    name, _, address = where.partition("=")
    if where == "gpus":
        from specgate.fleet.local import LocalMachines

        return LocalMachines(slots)
    if name == "ray":
        from specgate.fleet.ray_cluster import RayMachines

        return RayMachines(address or "auto", slots)
    raise UsageError(f"--on {where!r}: no such machines", hint="gpus, ray, or ray=ADDRESS of the cluster's head")

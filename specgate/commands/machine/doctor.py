"""`specgate machine doctor`: is this machine fit to measure on?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.errors import ExitCode
from specgate.terminal import console, echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specgate.contract.cycle_budget import Bandwidth
    from specgate.machine.doctor import Check

WIDTH = 80
_STYLES = {"ok": "green", "warn": "yellow", "reject": "bold red"}


@command(short_help="Is this machine fit to measure on?")
@click.option(
    "--policy", "name", metavar="FILE|NAME", help="Policy whose limits must be met (default: cpu or seed, by machine)."
)
@click.option(
    "--bandwidth", is_flag=True, help="Also measure the read bandwidth of the memory, and store it for later runs."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR", help="Parent of run folders."
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def doctor(name: str | None, bandwidth: bool, out: Path, as_json: bool) -> None:
    """Check whether this machine is fit to measure on: every GPU that CUDA shows, and the host. Nothing is changed.

    \b
    Example: specgate machine doctor --bandwidth

    With --bandwidth, also read the memory of each GPU (of the host, if there is no GPU) for some seconds, and write the
    bandwidth to noise/<device>-bandwidth.json beside the folder of runs. Later runs say how near their cycles come to
    it.

    CUDA_VISIBLE_DEVICES chooses the GPUs.

    Exit code 4 if the policy would reject this machine, else 0.
    """
    from specgate import plugins
    from specgate.machine import inventory
    from specgate.machine.bandwidth import measure_each, store
    from specgate.machine.doctor import Limits, bandwidth_check, examine
    from specgate.planning.defaults import MACHINE_POLICY, machine_size
    from specgate.planning.gates import machine_limits
    from specgate.planning.policy import find_policy

    policy = find_policy(name or MACHINE_POLICY[machine_size()], plugins.gates())
    gpus = [gpu for gpu in inventory.visible_gpus() if gpu["uuid"]]
    checks = examine(Limits.of(machine_limits(policy)))
    bandwidths = measure_each() if bandwidth else []
    if len(bandwidths) > 1:
        checks += [bandwidth_check(b, i) for i, b in enumerate(bandwidths)]
    else:
        checks += map(bandwidth_check, bandwidths)
    if as_json:
        echo_json(as_data(policy.name, checks, bandwidths, gpus))
    else:
        show(policy.name, checks, gpus)
    for each in bandwidths:
        echo(f"bandwidth {store(each, out)}", err=as_json)
    sys.exit(ExitCode.ENV_REJECTED if rejected(checks) else ExitCode.PASS)


def rejected(checks: Sequence[Check]) -> list[Check]:
    return [c for c in checks if c.level == "reject"]


def as_data(
    policy: str, checks: Sequence[Check], bandwidths: Sequence[Bandwidth], gpus: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """JSON-ready. With several GPUs, `gpus` has them as CUDA counts them, and a check says which it is about (`gpu`;
    None for the host). `bandwidth` is that of the first, which a run on one GPU uses.
    """
    several, wrong = len(gpus) > 1, {c.gpu for c in rejected(checks)}
    plain = [asdict(c) for c in checks]
    return {
        "schema": "specgate.doctor/v1",
        "policy": policy,
        "fit": not wrong,
        **(
            {"gpus": [{"uuid": g["uuid"], "name": g["name"], "fit": i not in wrong} for i, g in enumerate(gpus)]}
            if several
            else {}
        ),
        "checks": plain if several else [{k: v for k, v in c.items() if k != "gpu"} for c in plain],
        **({"bandwidth": asdict(bandwidths[0])} if bandwidths else {}),
        **({"bandwidths": [asdict(b) for b in bandwidths]} if len(bandwidths) > 1 else {}),
    }


def show(policy: str, checks: Sequence[Check], gpus: Sequence[Mapping[str, object]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True)
    for column, ratio in (("check", None), ("found", 5), ("right would be", 5), ("", None)):
        table.add_column(column, ratio=ratio, no_wrap=ratio is None, overflow="fold")
    out = console(width=WIDTH)
    if len(gpus) > 1:
        for number, gpu in enumerate(gpus):
            name = f"GPU {number}  {gpu['uuid']}  {gpu['name']}"
            out.print(Text(name if len(name) <= WIDTH else f"{name[: WIDTH - 1]}…"))
    for c in rows(checks):
        right = Text("" if c.level == "ok" else c.right)
        table.add_row(c.name, Text(about(c) + c.found), right, Text(c.level, style=_STYLES[c.level]))
    out.print(table)
    rejections = ", ".join(about(c) + c.name for c in rejected(checks))
    out.print(
        Text(f"policy {policy}: rejected for {rejections}" if rejections else f"policy {policy}: fit to measure on")
    )
    unfit = {c.gpu for c in rejected(checks)}
    fit = [str(number) for number in range(len(gpus)) if number not in unfit]
    if rejections and fit and None not in unfit and len(gpus) > 1:
        out.print(Text(f"GPU {', '.join(fit)} would do: CUDA_VISIBLE_DEVICES hides the others"))


def rows(checks: Sequence[Check]) -> Iterator[Check]:
    """Yield the checks to show: of those that several GPUs have, the ones that are not fine, or else the first."""
    by_name: dict[str, list[Check]] = {}
    for check in checks:
        by_name.setdefault(check.name, []).append(check)
    for same in by_name.values():
        yield from [c for c in same if c.level != "ok"] or same[:1]


def about(check: Check) -> str:
    return "" if check.gpu is None else f"GPU {check.gpu}: "

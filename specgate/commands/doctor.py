"""`specgate doctor`: is this machine fit to measure on?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.errors import ExitCode
from specgate.terminal import console, echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specgate.core.cycle_budget import Bandwidth
    from specgate.machine.doctor import Check

WIDTH = 80
_STYLES = {"ok": "green", "warn": "yellow", "reject": "bold red"}


@click.command(short_help="Is this machine fit to measure on?")
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
    """Check whether this machine is fit to measure on: its GPU and its host. Nothing is changed.

    With --bandwidth, also read the memory of the GPU (of the host, if there is no GPU) for some seconds, and write the
    bandwidth to noise/<device>-bandwidth.json beside the folder of runs. Later runs say how near their cycles come to
    it.

    Exit code 4 if the policy would reject this machine, else 0.
    """
    from specgate import plugins
    from specgate.machine import inventory
    from specgate.machine.bandwidth import measure, store
    from specgate.machine.doctor import Limits, bandwidth_check, examine
    from specgate.planning.policy import find_policy

    gates = {gate: plugin.params for gate, plugin in plugins.gates().items()}
    policy = find_policy(name or ("seed" if inventory.has_cuda_gpu() else "cpu"), gates)
    checks = examine(Limits.of(policy))
    found = measure() if bandwidth else None
    if found:
        checks.append(bandwidth_check(found))
    if as_json:
        echo_json(as_data(policy.name, checks, found))
    else:
        show(policy.name, checks)
    if found:
        file = store(found, out)
        echo(f"bandwidth {file}", err=as_json)
    sys.exit(ExitCode.ENV_REJECTED if rejected(checks) else ExitCode.PASS)


def rejected(checks: Sequence[Check]) -> list[Check]:
    return [c for c in checks if c.level == "reject"]


def as_data(policy: str, checks: Sequence[Check], bandwidth: Bandwidth | None) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "schema": "specgate.doctor/v1",
        "policy": policy,
        "fit": not rejected(checks),
        "checks": [asdict(c) for c in checks],
        **({"bandwidth": asdict(bandwidth)} if bandwidth else {}),
    }


def show(policy: str, checks: Sequence[Check]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True)
    for column, ratio in (("check", None), ("found", 5), ("right would be", 5), ("", None)):
        table.add_column(column, ratio=ratio, no_wrap=ratio is None, overflow="fold")
    for c in checks:
        right = Text("" if c.level == "ok" else c.right)
        table.add_row(c.name, Text(c.found), right, Text(c.level, style=_STYLES[c.level]))
    out = console(width=WIDTH)
    out.print(table)
    wrong = ", ".join(c.name for c in rejected(checks))
    out.print(Text(f"policy {policy}: rejected for {wrong}" if wrong else f"policy {policy}: fit to measure on"))

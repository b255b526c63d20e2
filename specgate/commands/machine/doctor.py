"""`specgate machine doctor`: is this machine fit to measure on?"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.errors import ExitCode
from specgate.terminal import console, echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specgate.contract.cycle_budget import Bandwidth
    from specgate.machine.doctor import Check

WIDTH = 80
LEVELS = ("ok", "warn", "reject")
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
    from specgate.machine.doctor import Limits, bandwidth_check, equal_bandwidth_check, examine
    from specgate.planning.defaults import MACHINE_POLICY, machine_size
    from specgate.planning.gates import machine_limits
    from specgate.planning.policy import find_policy

    policy = find_policy(name or MACHINE_POLICY[machine_size()], plugins.gates())
    gpus = [gpu for gpu in inventory.visible_gpus() if gpu["uuid"]]
    checks = examine(Limits.of(machine_limits(policy)))
    bandwidths = measure_each() if bandwidth else []
    if len(bandwidths) > 1:
        checks += [*(bandwidth_check(b, i) for i, b in enumerate(bandwidths)), equal_bandwidth_check(bandwidths)]
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
    """JSON-ready. With several GPUs, `gpus` has them as CUDA counts them, and a check says which it is about (`gpu`,
    None for what they share). `bandwidth` is that of the first, which a run on one GPU uses.
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
    for c in joined(checks, [str(gpu["uuid"]) for gpu in gpus]):
        right = Text("" if c.level == "ok" else c.right)
        table.add_row(c.name, Text(c.found), right, Text(c.level, style=_STYLES[c.level]))
    out.print(table)
    wrong: dict[str, list[int]] = {}
    for c in rejected(checks):
        wrong.setdefault(c.name, []).extend([] if c.gpu is None else [c.gpu])
    rejections = ", ".join(f"{name} ({numbered(of)})" if of else name for name, of in wrong.items())
    out.print(
        Text(f"policy {policy}: rejected for {rejections}" if rejections else f"policy {policy}: fit to measure on")
    )
    unfit = {c.gpu for c in rejected(checks)}
    fit = [number for number in range(len(gpus)) if number not in unfit]
    if rejections and fit and None not in unfit and len(gpus) > 1:
        out.print(Text(f"{numbered(fit)} would do: CUDA_VISIBLE_DEVICES hides the others"))


def joined(checks: Sequence[Check], uuids: Sequence[str]) -> list[Check]:
    """A check for each name: what several GPUs were found to be stands in one, the worst first."""
    of: dict[str, list[Check]] = {}
    for check in checks:
        of.setdefault(check.name, []).append(check)
    return [same[0] if same[0].gpu is None else _joined(same, uuids) for same in of.values()]


def _joined(checks: Sequence[Check], uuids: Sequence[str]) -> Check:
    """The checks of one name, each about one GPU."""
    worst_first = sorted(checks, key=lambda c: -LEVELS.index(c.level))
    wrong = [c for c in worst_first if c.level != "ok"]
    states = by_gpu([(c, without_uuid(c.found, uuids)) for c in worst_first], len(uuids))
    # A command names the UUID that it is for, so it is shown for the first GPU that needs it.
    rights: dict[str, list[Check]] = {}
    for check in wrong:
        rights.setdefault(without_uuid(check.right, uuids), []).append(check)
    remedies = [(first, first.right + likewise(same)) for same in rights.values() for first in same[:1]]
    right = (
        by_gpu(remedies, len(remedies))
        if len(remedies) == 1
        else "; ".join(f"GPU {c.gpu}: {text}" for c, text in remedies)
    )
    return replace(worst_first[0], found=states, right=right)


def by_gpu(texts: Sequence[tuple[Check, str]], count: int) -> str:
    """`GPU 5: pid 7 (x); GPU 0–4, 6, 7: none`; the text alone where all of `count` GPUs have the same."""
    of: dict[str, list[int]] = {}
    for check, text in texts:
        of.setdefault(text, []).append(check.gpu or 0)
    alone = len(of) == 1 and len(texts) == count
    return next(iter(of)) if alone else "; ".join(f"{numbered(numbers)}: {text}" for text, numbers in of.items())


def likewise(same: Sequence[Check]) -> str:
    """For which GPUs a text with a UUID in it holds likewise; empty where it has none, or holds for one GPU."""
    others = [c.gpu or 0 for c in same[1:] if c.right != same[0].right]
    return f" ({numbered([same[0].gpu or 0])}; likewise {numbered(others)})" if others else ""


def without_uuid(text: str, uuids: Sequence[str]) -> str:
    for uuid in uuids:
        text = text.replace(f", {uuid}", "").replace(uuid, "UUID")
    return text


def numbered(numbers: Sequence[int]) -> str:
    """`GPU 0–2, 5`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    ranges = (str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in spans)
    return f"GPU {', '.join(ranges)}"

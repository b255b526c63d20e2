"""`specgate runs explain RUN`: where the time of a cycle goes, and what it would take to pass the speed gates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.contract import Policy, Run


@command(short_help="Show where a run's time goes, and what its gates would take.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--policy", "name", metavar="FILE|NAME", help="Policy with the speed gates (default: the run's own).")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def explain(run: Path, name: str | None, as_json: bool) -> None:
    """Explain the speed-ups of the run folder RUN.

    \b
    Example: specgate runs explain RUN

    Each cycle is split into draft, verify, accept, commit and host gap, each shown with the bytes that it must move and
    the least time that this takes here. Each speed-up is split into acceptance and cost, with the highest value that it
    could reach.

    Everything is recomputed from the run's samples. Nothing is measured and nothing is written.
    """
    from specgate import plugins
    from specgate.analysis.speedup_limits import with_ceilings
    from specgate.archive.recomputation import recompute
    from specgate.archive.stored_runs import load_run
    from specgate.files.run_folder import RunFolder
    from specgate.planning.gates import floors_of
    from specgate.planning.policy import find_policy

    load_run(run)  # refuses a run that was changed afterwards
    again, _, config = recompute(RunFolder.open(run, read_only=True))
    policy = config.policy
    if name:
        policy = find_policy(name, plugins.gates())
        again = with_ceilings(again, floors_of(policy))
    if as_json:
        echo_json(as_data(again, policy))
    else:
        echo(plugins.report("explain").render(again, policy))


def as_data(run: Run, policy: Policy) -> dict[str, object]:
    from specgate.contract import Bandwidth, CycleBudget
    from specgate.files.json_text import to_plain

    return {
        "schema": "specgate.explain/v1",
        "run": run.id,
        "policy": policy.name,
        "bandwidth": to_plain(Bandwidth, run.bandwidth) if run.bandwidth else None,
        "budgets": {key: to_plain(CycleBudget, budget) for key, budget in run.budgets.items()},
    }

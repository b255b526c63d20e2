"""`specgate policy`: a policy for what was measured, and a policy with all that it inherits."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.door import Group
from specgate.errors import UsageError
from specgate.terminal import echo


@click.group(cls=Group)
def policy() -> None:
    """Write and show policies.

    \b
    Example: specgate policy show cpu
    """


@policy.command(short_help="Print a policy with all that it inherits.")
@click.argument("name", metavar="FILE|NAME")
def show(name: str) -> None:
    """Print the policy FILE|NAME as one complete file: every rule of its bases stands in it. Exit code 2 for a policy
    with a problem.

    \b
    Example: specgate policy show cpu
    """
    from specgate import plugins
    from specgate.planning.policy import whole_text

    echo(whole_text(name, plugins.gates()), nl=False)


@policy.command(short_help="Write a policy for the scenarios of measured runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The policy file (default: printed).")
@click.option(
    "--margin-pct",
    type=click.FloatRange(0, 50),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="How far floors lie below what was measured, at least.",
)
def init(runs: tuple[Path, ...], out: Path | None, margin_pct: float) -> None:
    """Write a policy for the scenarios of the run folders RUN: a floor for every speed-up and acceptance length that
    they measured, over the policy that they were judged by.

    \b
    Example: specgate policy init RUN --out FILE

    Floors lie below what was measured by the margin, and by more where the intervals or the noise profile prove
    less; a comment beside each says so. Judged by the policy, the runs pass. Exit code 2 for a run from which no floor
    follows. RUN may be a result of another tool, such as of `vllm bench serve`: floors of acceptance follow.
    """
    from specgate.archive.policy_from_results import policy_of_results
    from specgate.archive.policy_from_runs import policy_text
    from specgate.archive.stored_runs import load_runs
    from specgate.commands.runs.compare import of_other_tools
    from specgate.files.writing import write_text

    if not margin_pct < 50:
        raise UsageError(f"--margin-pct {margin_pct:g}: not a margin", hint="below 50")
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out {out}: a policy is a .yaml file")
    if out is not None and out.exists():
        raise UsageError(f"--out {out} exists already", hint="a policy is not overwritten: give another name")
    if of_other_tools(runs):
        text = policy_of_results(runs, margin_pct)
    else:
        text = policy_text(load_runs(runs), (out.parent if out else Path()).absolute(), margin_pct)
    if out is None:
        echo(text, nl=False)
        return
    write_text(out, text)
    echo(f"wrote {out}: specgate micro --policy {out} judges by it")

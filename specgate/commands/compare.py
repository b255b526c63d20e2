"""`specgate compare` and `specgate matrix`: stored runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.output import OUT_OPTION, PLAIN_OPTION, is_plain, write_files
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.contract.protocols import Format, View

RUN = click.Path(path_type=Path)


@click.command(short_help="Compare two runs: what differs, and is it acceptable?")
@click.argument("a", type=RUN)
@click.argument("b", type=RUN)
@click.option(
    "--policy", metavar="FILE|NAME", default="compare", show_default=True, help="What must hold of B compared with A."
)
@click.option("--html", is_flag=True, help="Write compare.html.")
@click.option("--md", is_flag=True, help="Write compare.md.")
@click.option("--csv", is_flag=True, help="Write compare.csv, with every figure.")
@OUT_OPTION
@PLAIN_OPTION
def compare(a: Path, b: Path, policy: str, html: bool, md: bool, csv: bool, out: Path, plain: bool) -> None:
    """Compare run B with run A, cell by cell. The two runs may have different back ends.

    Tokens and acceptance are paired by prompt. Each speed-up is paired in time with the baseline of its own run. Other
    times are not paired in time, so they prove nothing unless the policy trusts them. A speed-up that fell although
    both roles became faster is no failure: the baseline gained more. The exit code follows from the policy's verdict.
    """
    from specgate import plugins
    from specgate.analysis.verdict import overall_of_contrast
    from specgate.archive.contrasting import contrast_of
    from specgate.archive.stored import load_runs
    from specgate.planning.policy import FOR_CONTRASTS, find_policy

    gates = plugins.contrast_gates()
    judging = find_policy(policy, gates, FOR_CONTRASTS)
    one, other = load_runs((a, b))
    contrast = contrast_of(one, other)
    verdicts = [v for rule in judging.rules for v in gates[rule.gate].judge(rule, contrast)]
    contrast = replace(contrast, verdicts=tuple(verdicts), policy=judging.name)
    view = plugins.view("compare")
    echo(view.render(contrast, "plain" if is_plain(plain) else "console"), coloured=True)
    write_files(out, rendered(view, contrast, html=html, md=md, csv=csv))
    _, code = overall_of_contrast(contrast)
    sys.exit(code)


@click.command(short_help="The same cells on several back ends, side by side.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--html", is_flag=True, help="Write matrix.html.")
@click.option("--md", is_flag=True, help="Write matrix.md.")
@click.option("--csv", is_flag=True, help="Write matrix.csv, a row per cell and back end.")
@OUT_OPTION
@PLAIN_OPTION
def matrix(runs: tuple[Path, ...], html: bool, md: bool, csv: bool, out: Path, plain: bool) -> None:
    """Put the runs RUN... side by side: a row per scenario, context, batch and role, a column per back end.

    A figure that was measured on other prompts or with other settings than the rest of its row is replaced by the
    reason why it cannot be compared. Nothing is judged.
    """
    from specgate import plugins
    from specgate.archive.stored import load_runs
    from specgate.contract.matrix import matrix_of

    found = matrix_of([stored.run for stored in load_runs(runs)])
    view = plugins.view("matrix")
    echo(view.render(found, "plain" if is_plain(plain) else "console"), coloured=True)
    write_files(out, rendered(view, found, html=html, md=md, csv=csv))


def rendered(view: View[Any], subject: object, **wanted: bool) -> Iterator[tuple[str, str]]:
    """(file name, text) of every format that is wanted. `wanted`: html, md and csv → whether to render it."""
    formats: tuple[Format, ...] = ("html", "md", "csv")
    yield from ((f"{view.name}.{format}", view.render(subject, format)) for format in formats if wanted[format])

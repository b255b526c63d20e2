"""`specgate tradeoff RUN...`: roles and their variants beside each other, with what each gives and what it changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.compare import RUN, rendered
from specgate.commands.output import OUT_OPTION, PLAIN_OPTION, is_plain, write_files
from specgate.errors import UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.analysis.tradeoff import Group


@click.command(short_help="Roles and variants of stored runs: speed, memory, acceptance, exactness.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--html", is_flag=True, help="Write tradeoff.html.")
@click.option("--md", is_flag=True, help="Write tradeoff.md.")
@click.option("--csv", is_flag=True, help="Write tradeoff.csv, a row per role.")
@click.option("--json", "as_json", is_flag=True, help="Write tradeoff.json.")
@OUT_OPTION
@PLAIN_OPTION
def tradeoff(runs: tuple[Path, ...], html: bool, md: bool, csv: bool, as_json: bool, out: Path, plain: bool) -> None:
    """Lay out what every role of the run folders RUN... gives and what it changes, by scenario, context and batch.

    Of plain decoding, of each draft length and of each variant: tokens per second, acceptance length, passes of the
    target, bytes of cache read per token and held, memory, and how far the text is the baseline's. Then what is fastest
    with plain decoding's text and without it, and from which context on the cache is most of what a step reads.

    Variants are measured by a scenario that has some (`variants:`). Nothing is judged.
    """
    from specgate import plugins
    from specgate.analysis.tradeoff import tradeoff_of
    from specgate.archive.stored import load_runs

    found = tradeoff_of((one.run, one.blocks()) for one in load_runs(runs))
    if not found:
        raise UsageError("no run has a cell: there is nothing to lay out", hint="give runs that measured something")
    view = plugins.view("tradeoff")
    echo(view.render(found, "plain" if is_plain(plain) else "console"), coloured=True)
    files = list(rendered(view, found, html=html, md=md, csv=csv))
    if as_json:
        files.append(("tradeoff.json", json.dumps(as_data(found), indent=1) + "\n"))
    write_files(out, files)


def as_data(found: Sequence[Group]) -> dict[str, object]:
    """As stored: schema `specgate.tradeoff/v1`, a record per role as of `analysis.tradeoff.records`."""
    from specgate.analysis.tradeoff import records

    return {"schema": "specgate.tradeoff/v1", "roles": list(records(found))}

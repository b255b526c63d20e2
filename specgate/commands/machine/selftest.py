"""`specgate machine selftest`: inject faults that the gates must see."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.door import command
from specgate.terminal import console, echo


@command(short_help="Inject known faults, and check that the gates see them.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the runs in this folder.")
@click.pass_context
def selftest(context: click.Context, keep: Path | None) -> None:
    """Inject each known fault into a scripted engine, and check that its gate objects, and none that must not.

    \b
    Example: specgate machine selftest

    Every gate has a fault of its own. None may object to an engine without one. No GPU is needed. Exit code 0 if every
    fault was seen, else 1.
    """
    import tempfile

    from rich import box
    from rich.table import Table

    from specgate.selftest.faults import outcomes

    table = Table("fault", "must be seen by", "", box=box.SIMPLE)
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for outcome in outcomes(keep or Path(scratch)):
            missed += outcome.wrong is not None
            table.add_row(outcome.name, outcome.expected, outcome.wrong or "seen")
    console().print(table)
    echo(
        f"selftest: {missed} of {table.row_count} wrong"
        if missed
        else f"selftest: all {table.row_count} as they must be"
    )
    context.exit(1 if missed else 0)

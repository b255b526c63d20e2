"""`specgate runs history`: follow figures over the runs of a folder. Nothing is judged."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.door import command
from specgate.commands.output import Output, output_options


@command(short_help="Follow figures over the runs of a folder.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@output_options
def history(folder: Path, output: Output) -> None:
    """Show how figures changed over the runs at or below FOLDER (default: runs), separately for each group.

    \b
    Example: specgate runs history runs --html

    A group is one combination of machine, weights, prompts and settings. Nothing is judged: runs of different days are
    not paired in time, so a step in a trend is a reason to look closer, not a verdict. The exit code is 0.
    """
    from specgate.archive.history import trends_of

    output.show("history", trends_of(folder))

"""`specgate runs history`: follow figures over the runs of a folder. Nothing is judged."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.door import command
from specgate.commands.output import Output, output_options, write_files


@command(short_help="Follow figures over the runs of a folder, or export them.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="NAME",
    help="Write files for otava or github-action-benchmark; may be repeated.",
)
@output_options
def history(folder: Path, exports: tuple[str, ...], output: Output) -> None:
    """Show how figures changed over the runs at or below FOLDER (default: runs), separately for each group.

    \b
    Example: specgate runs history runs --html

    A group is one combination of machine, weights, prompts and settings. Nothing is judged: runs of different days are
    not paired in time, so a step in a trend is a reason to look closer, not a verdict. The exit code is 0.
    """
    from specgate import plugins
    from specgate.archive.history import trends_of

    chosen = [plugins.export(name) for name in exports]
    trends = trends_of(folder)
    output.show("history", trends)
    for export in chosen:
        write_files(output.out, ((f"{export.name}/{file}", text) for file, text in export.files(trends).items()))

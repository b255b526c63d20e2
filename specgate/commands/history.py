"""`specgate history`: follow figures over the runs of a folder. Nothing is judged."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.compare import rendered
from specgate.commands.output import OUT_OPTION, PLAIN_OPTION, is_plain, write_files
from specgate.terminal import echo


@click.command(short_help="Follow figures over the runs of a folder, or export them.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--html", is_flag=True, help="Write history.html, with a picture per metric.")
@click.option("--md", is_flag=True, help="Write history.md.")
@click.option("--csv", is_flag=True, help="Write history.csv, a row per run and figure.")
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="NAME",
    help="Write files for otava or github-action-benchmark; may be repeated.",
)
@OUT_OPTION
@PLAIN_OPTION
def history(folder: Path, html: bool, md: bool, csv: bool, exports: tuple[str, ...], out: Path, plain: bool) -> None:
    """Show how figures changed over the runs at or below FOLDER (default: runs), separately for each ground.

    A ground is one combination of machine, weights, prompts and settings. Nothing is judged: runs of different days are
    not paired in time, so a step in a trend is a reason to look closer, not a verdict. The exit code is 0.
    """
    from specgate import plugins
    from specgate.archive.history import trends_of

    chosen = [plugins.export(name) for name in exports]
    trends = trends_of(folder)
    view = plugins.view("history")
    echo(view.render(trends, "plain" if is_plain(plain) else "console"), coloured=True)
    write_files(out, rendered(view, trends, html=html, md=md, csv=csv))
    for export in chosen:
        write_files(out, ((f"{export.name}/{file}", text) for file, text in export.files(trends).items()))

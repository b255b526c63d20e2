"""`specgate runs show` and `specgate runs report`: print or render again what a run said at its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.commands.output import ALL_OPTION, OUT_OPTION, PLAIN_OPTION, RUN, show_comparison, show_run, write_files
from specgate.errors import UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.archive.stored_runs import StoredRun

FORMATS = {"html": ("html",), "csv": ("metrics_csv", "summary_csv"), "md": ("markdown",), "junit": ("junit",)}


@command(short_help="Print the summary of stored runs, as a run ends with it.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@PLAIN_OPTION
@ALL_OPTION
def show(runs: tuple[Path, ...], plain: bool, every: bool) -> None:
    """Print the summary of the run folders RUN..., as it was printed when they ended.

    With --all: every rule with its message, the engine, its memory, the machine, and the time that checks took.
    RUN may also be the folder of a comparison (`specgate ab`). Nothing is measured or judged again.
    Exit code 6 if a file of a run was changed, 3 if its ending was cut, else 0, whatever the verdict.

    \b
    Example: specgate runs show runs/RUN
    """
    from specgate.ab.folder import is_comparison
    from specgate.archive.stored_runs import load_runs

    for run in load_runs([path for path in runs if not is_comparison(path)]):
        show_run(run, plain=plain, every=every)
    for path in filter(is_comparison, runs):
        show_comparison(path, plain=plain, every=every)


@command(short_help="Render reports of stored runs: HTML, CSV, Markdown, JUnit.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--html", is_flag=True, help="Write report.html of each run.")
@click.option("--csv", is_flag=True, help="Write metrics.csv and summary.csv, one of each for all runs.")
@click.option("--md", is_flag=True, help="Write summary.md of each run, at most 60 lines.")
@click.option("--junit", is_flag=True, help="Write junit.xml for all runs, a suite per run.")
@click.option(
    "--report", "others", multiple=True, metavar="NAME", help="Write report NAME: benchmark_json, or a plug-in's."
)
@click.option("--github", is_flag=True, help="Print a GitHub annotation, and add the summary to $GITHUB_STEP_SUMMARY.")
@OUT_OPTION
def report(
    runs: tuple[Path, ...],
    html: bool,
    csv: bool,
    md: bool,
    junit: bool,
    others: tuple[str, ...],
    github: bool,
    out: Path,
) -> None:
    """Render the reports of the run folders RUN... again, from what is stored in them.

    \b
    Example: specgate runs report RUN --html --csv

    Nothing is measured or judged again, and no run folder is written to. `specgate runs show RUN` prints the verdict.

    Exit code 6 if a file of a run was changed, 3 if its ending was cut, else 0, whatever the verdict.
    """
    from specgate.archive.rendering import files
    from specgate.archive.stored_runs import load_runs

    chosen = [
        name
        for option, chosen_format in zip(FORMATS, (html, csv, md, junit), strict=True)
        if chosen_format
        for name in FORMATS[option]
    ]
    names = [*chosen, *others]
    if not names and not github:
        formats = ", ".join((*(f"--{name}" for name in FORMATS), "--github", "--report NAME"))
        raise UsageError(f"no format: give one of {formats}", hint="specgate runs show RUN prints the summary")
    stored = load_runs(runs)
    if github:
        annotate(stored)
    write_files(out, files(names, stored))


def annotate(runs: list[StoredRun]) -> None:
    """Print annotations on the standard output. Append the summaries to $GITHUB_STEP_SUMMARY, if that is set."""
    from specgate.archive.rendering import rendered
    from specgate.files.writing import as_stored, disk

    for run in runs:
        echo(rendered("github", run))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with disk(Path(summary), "$GITHUB_STEP_SUMMARY names it"), open(summary, "a", encoding="utf-8") as file:
            file.write(as_stored("\n".join(rendered("markdown", run) for run in runs)))

"""`specgate demo`: a first verdict without a download, a GPU or an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from specgate.commands.door import command
from specgate.terminal import echo

NEXT: Final = (
    ("your server", "specgate micro http://localhost:8000,http://localhost:8003"),
    ("your pair", "specgate micro --target TARGET --draft DRAFT"),
    ("your repository", "specgate ab --base main --backend NAME"),
)


@command(short_help="Judge two scripted engines: a first look, without download or GPU.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/demo"),
    show_default=True,
    metavar="DIR",
    help="Parent of the run folders.",
)
@click.pass_context
def demo(context: click.Context, out: Path) -> None:
    """Measure and judge two scripted engines, one honest and one with a wrong token.

    \b
    Example: specgate demo

    They pass through all that a real engine does: plan, timed blocks, gates, report. Exit code 0 if both ended as they
    must, else 1.
    """
    from specgate.selftest.demo import ENGINES, demo_runs

    echo(f"{len(ENGINES)} scripted engines, measured and judged as a real one is (about 10 s, no GPU)")
    echo()
    pages, expected = [], True
    for run in demo_runs(out):
        echo(f"{run.engine.name:<17} {run.state:<8} {run.answer}")
        pages.append(run.page)
        expected = expected and run.expected
    echo()
    for page in pages:
        echo(f"page  {page}")
    echo()
    for subject, line in NEXT:
        echo(f"{subject:<17} {line}")
    context.exit(0 if expected else 1)

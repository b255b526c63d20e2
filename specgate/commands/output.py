"""What the commands that render stored runs share: their options, and writing their files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from specgate.errors import UsageError
from specgate.terminal import echo

OUT_OPTION = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("report"),
    show_default=True,
    metavar="FOLDER",
    help="Folder for the files.",
)
PLAIN_OPTION = click.option("--plain", is_flag=True, help="Plain lines instead of tables.")


def is_plain(plain: bool) -> bool:
    """Whether to print plain lines: if they are asked for, or if the output is not a terminal."""
    return plain or not (sys.stdout and sys.stdout.isatty())


def write_files(out: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write every (name, text) below `out`, and print where. Raises UsageError if `out` lies in a run folder."""
    from specgate.files.writing import write_text

    for name, text in files:
        if (run := run_above(out)) is not None:
            hint = "choose a folder outside, so that the run's manifest keeps holding"
            raise UsageError(f"--out {out} lies in the run folder {run}", hint=hint)
        write_text(out / name, text)
        echo(f"wrote {out / name}")


def run_above(folder: Path) -> Path | None:
    """The run folder that `folder` is or lies in, or None."""
    return next(
        (f for f in (folder.absolute(), *folder.absolute().parents) if (f / "config.resolved.yaml").exists()), None
    )

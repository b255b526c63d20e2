"""Shared parts of the commands that render stored runs: their options, and writing their files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.options import plain_option
from specgate.errors import UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.archive.stored_runs import StoredRun
    from specgate.contract.protocols import Format, View

RUN = click.Path(path_type=Path)
"""A run folder as an argument."""
OUT_OPTION = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("report"),
    show_default=True,
    metavar="FOLDER",
    help="Folder for the files.",
)
PLAIN_OPTION = plain_option("Plain lines instead of tables.")
ALL_OPTION = click.option("--all", "every", is_flag=True, help="Every figure, rule and fact.")
VIEW_FORMATS: Final[dict[Format, str]] = {
    "html": "a page",
    "md": "Markdown",
    "csv": "every figure, as a table",
    "json": "the same, with all tables",
}
"""Formats that a view may be written in → what the file holds."""


@dataclass(frozen=True, slots=True)
class Output:
    """The formats, the folder and the style that a view of stored runs is rendered in."""

    formats: tuple[Format, ...]
    out: Path
    plain: bool

    def show(self, name: str, subject: object) -> None:
        """Print the view `name` of `subject`, and write its files."""
        from specgate import plugins

        view = plugins.view(name)
        echo(view.render(subject, "plain" if self.plain else "console"), coloured=True)
        write_files(self.out, rendered(view, subject, self.formats))


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an `Output`, which it gets as `output`."""

    @functools.wraps(command)
    def with_output(*, out: Path, plain: bool, **settings: Any) -> None:
        formats: tuple[Format, ...] = tuple(f for f in VIEW_FORMATS if settings.pop(f))
        command(output=Output(formats, out, plain), **settings)

    wrapped: Callable[..., None] = PLAIN_OPTION(OUT_OPTION(with_output))
    for format, content in reversed(VIEW_FORMATS.items()):
        wrapped = click.option(f"--{format}", format, is_flag=True, help=f"Write a .{format} file: {content}.")(wrapped)
    return wrapped


def rendered(view: View[Any], subject: object, formats: Iterable[Format]) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of a view in every one of the formats."""
    yield from ((f"{view.name}.{format}", view.render(subject, format)) for format in formats)


def show_comparison(path: Path, *, plain: bool, every: bool) -> None:
    """Print a stored comparison of two builds, as `show_run` does with a run."""
    from specgate import plugins
    from specgate.ab.session import closing_lines
    from specgate.archive.verification import verify_builds
    from specgate.errors import InvalidResult
    from specgate.promotion.ending import refuse_cut

    refuse_cut(path)
    result = verify_builds(path).result
    if result is None:
        raise InvalidResult(f"{path}: cannot be read", hint=f"specgate runs verify {path} names every place")
    format: Format = "all" if every else "plain" if plain else "console"
    echo(plugins.view("ab").render(result, format), coloured=True)
    for line in closing_lines(result, path):
        echo(line)


def show_run(run: StoredRun, *, plain: bool, every: bool) -> None:
    """Print a stored run as it was printed when it ended; with `every`, all that is known of it."""
    from specgate.archive.rendering import rendered
    from specgate.run.ending import closing_lines
    from specgate.run.recompute import ending

    name = "details" if every else "plain" if plain else "console"
    echo(rendered(name, run), coloured=True)
    for line in closing_lines(run.run, run.path, ending(run.run)):
        echo(line)


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

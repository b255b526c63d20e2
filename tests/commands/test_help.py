"""Help pages: a screen per command with an example that can be typed, and the same options of the siblings."""

from __future__ import annotations

import shlex
from typing import Final

import click
import pytest
from click.testing import CliRunner

from specgate.cli import cli
from specgate.commands.options import SIBLINGS
from specgate.errors import UsageError
from tests.key_tables.lists import MEASURING
from tests.test_command_lines import faults

REFUSED: Final = {"smoke": {"--batch", "--policy"}}
"""Command → options of its siblings that it has no use for."""


def every(group: click.Group, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of the group and of everything below it that can be typed."""
    paths = [above]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = (*above, name)
        paths += every(command, path) if isinstance(command, click.Group) else [path]
    return paths


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command | None = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    return command


@pytest.mark.parametrize("path", every(cli), ids=" ".join)
def test_help_fits_a_screen_and_has_one_example_that_can_be_typed(path: tuple[str, ...]) -> None:
    page = CliRunner().invoke(cli, [*path, "--help"], prog_name="specgate", terminal_width=80)
    lines = page.output.splitlines()
    assert page.exit_code == 0 and len(lines) <= 30, page.output
    assert max(map(len, lines)) <= 80, page.output
    (example,) = (line for line in lines if "Example: " in line)
    (words,) = [shlex.split(example.partition("Example: specgate ")[2])]
    assert tuple(words[: len(path)]) == path and list(faults(words, whole=True)) == []


@pytest.mark.parametrize("path", [p for p in every(cli) if not isinstance(command_at(p), click.Group)], ids=" ".join)
def test_the_whole_help_has_every_option(path: tuple[str, ...]) -> None:
    page = CliRunner().invoke(cli, [*path, "--help-all"]).output
    for option in command_at(path).params:
        if isinstance(option, click.Option) and not option.hidden:
            assert max(option.opts, key=len) in page


@pytest.mark.parametrize("name", MEASURING)
@pytest.mark.parametrize("option", SIBLINGS)
def test_siblings_take_the_same_options_or_say_what_to_use(name: str, option: str) -> None:
    path = tuple(name.split())
    (taken,) = [p for p in command_at(path).params if option in p.opts]
    assert isinstance(taken, click.Option)
    if option not in REFUSED.get(name, ()):
        assert not taken.hidden
        return
    error = CliRunner().invoke(cli, [*path, option, "4"]).exception
    assert isinstance(error, UsageError) and error.hint
    assert error.message.startswith(f"{option} 4: not an option of ") and "specgate " in error.hint

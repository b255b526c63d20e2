"""The first page of the command line, and the older names that still work."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from specgate.cli import cli
from specgate.commands.names import HEADINGS, OLD
from specgate.errors import ExitCode


def test_the_first_page_has_at_most_twelve_names_each_below_one_heading() -> None:
    names = [name for below in HEADINGS.values() for name in below]
    assert sorted(names) == sorted(cli.commands) and len(names) <= 12
    page = CliRunner().invoke(cli, ["--help"]).output
    assert [line for line in page.splitlines() if line.rstrip(":") in HEADINGS] == [f"{h}:" for h in HEADINGS]


@pytest.mark.engine
@pytest.mark.parametrize("old", OLD)
def test_an_older_name_works_is_not_shown_and_says_the_present_one_in_one_line(old: str) -> None:
    result = CliRunner().invoke(cli, [*old.split(), "--help"])
    path = " ".join(word for word in OLD[old].split() if not word.startswith("-") and word != "gpus")
    assert result.exit_code == 0 and result.stdout.startswith(f"Usage: cli {path} ")
    assert result.stderr == f"note: specgate {old} is now: specgate {OLD[old]}\n"
    command: click.Command | None = cli
    for word in old.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
        if command is None:
            break
    assert command is None


def test_what_is_no_name_at_all_is_refused() -> None:
    assert CliRunner().invoke(cli, ["micor"]).exit_code == ExitCode.USAGE

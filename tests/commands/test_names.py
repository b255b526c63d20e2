"""The first page of the command line."""

from __future__ import annotations

from click.testing import CliRunner

from specgate.cli import HEADINGS, cli
from specgate.errors import ExitCode


def test_the_first_page_has_at_most_twelve_names_each_below_one_heading() -> None:
    names = [name for below in HEADINGS.values() for name in below]
    assert sorted(names) == sorted(cli.commands) and len(names) <= 12
    page = CliRunner().invoke(cli, ["--help"]).output
    assert [line for line in page.splitlines() if line.rstrip(":") in HEADINGS] == [f"{h}:" for h in HEADINGS]


def test_what_is_no_name_at_all_is_refused_with_those_that_there_are() -> None:
    for words, names in (
        (("micor",), sorted(cli.commands)),
        (("engine", "pairs", "micor"), ["check", "fetch", "list"]),
    ):
        wrong = CliRunner().invoke(cli, words)
        assert wrong.exit_code == ExitCode.USAGE
        assert f"'micor': there are {', '.join(names)}" in wrong.output


def test_a_command_that_is_in_another_group_is_named_where_it_is() -> None:
    for words, where in (
        ("doctor", "specgate machine doctor?"),
        ("runs doctor", "specgate machine doctor?"),
        ("show", "specgate policy show or specgate runs show or specgate scenarios show?"),
    ):
        wrong = CliRunner().invoke(cli, words.split(), prog_name="specgate")
        assert wrong.exit_code == ExitCode.USAGE
        assert f"did you mean {where}" in wrong.output

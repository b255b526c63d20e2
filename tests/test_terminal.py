"""The door to the terminal: there is one, and neither a credential nor an escape goes through it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from rich.table import Table

from specgate import redaction, terminal
from tests.support.command import ROOT, Cli
from tests.support.imports import modules, room_of

KEY = "horse-battery-staple-9"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\u202e\x9b"
WRITTEN_OUT = r"\x1b[2J\x1b]0;owned\x07\x0d\u202e\x9b"

NOT_ON_A_TERMINAL = ("specgate.terminal", "specgate.reports.texts.console", "specgate.sandbox.probe")
"""The door itself, what renders to a string, and a program whose output the harness reads."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_known_forms", ())
    redaction.remember(KEY)


def printing(file: Path) -> list[str]:
    """Return the places where a source file prints past the door."""
    values = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        called = isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "Console", "traceback.print_exc")
        if called or (isinstance(node, ast.Attribute) and ast.unparse(node) in ("click.echo", "click.secho")):
            values.append(f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)[:60]}")
    return values


@pytest.mark.engine
def test_there_is_one_door() -> None:
    """Back ends and the process that they run in are left out: its output is a log, which is cleaned."""
    past = [
        line
        for module, file in modules().items()
        if module not in NOT_ON_A_TERMINAL and room_of(module) != "backends" and ".engine_process." not in module
        for line in printing(file)
    ]
    assert not past, "\n".join(past)


@pytest.mark.parametrize("err", [False, True])
def test_what_is_echoed_is_masked_and_visible(capsys: pytest.CaptureFixture[str], err: bool) -> None:
    terminal.echo(f"{KEY} {ESCAPES} [red]\tü", err=err)
    output = capsys.readouterr()
    assert (output.err if err else output.out) == f"*** {WRITTEN_OUT} [red]\tü\n"


def test_a_name_that_is_no_text_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.echo(b"caf\xe9".decode("utf-8", errors="surrogateescape"))
    assert capsys.readouterr().out == "caf\\udce9\n"


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.echo_json({"a": ESCAPES, "b": [KEY, 1.5]})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": ESCAPES, "b": ["***", 1.5]} and not set(ESCAPES[-3:]) & set(text)


def test_a_console_takes_no_markup_from_strings(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("[red]head[/red]")
    table.add_row(f"[link=x]:smile: {KEY} \x1b[2J[/link]")
    terminal.console(width=80).print(table)
    text = capsys.readouterr().out
    assert "[red]head[/red]" in text and "[link=x]:smile: *** \\x1b[2J[/link]" in text and "\x1b" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "check", f"no{ESCAPES}.json", "--policy", "cpu"],
        ["runs", "verify", f"no{ESCAPES}"],
        ["runs", "show", f"no{ESCAPES}"],
        ["scenarios", "check", f"no{ESCAPES}.yaml"],
        ["micro", "--backend", f"no{ESCAPES}"],
        ["micro", f"--no-such-{ESCAPES}"],
        [f"no{ESCAPES}"],
        ["scenarios", "plan", "--scenario", f"no{ESCAPES}"],
    ],
)
def test_no_argument_reaches_the_terminal_as_an_escape(cli: Cli, arguments: list[str]) -> None:
    done = cli.run(*arguments, pair=False)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert "\\x1b" in output and not set(output) & set("\x1b\x07\r\u202e\x9b")


def test_no_content_of_a_file_reaches_the_terminal_as_an_escape(cli: Cli) -> None:
    bad = json.dumps({"schema": ESCAPES}, ensure_ascii=False)
    done = cli.run("runs", "check", cli.write("bad.json", bad), "--policy", "cpu", pair=False)
    output = done.stdout + done.stderr
    assert done.returncode in (2, 6) and "Traceback" not in output and not set(output) & set("\x1b\x07\r\u202e\x9b")


def test_no_credential_among_the_arguments_is_repeated(cli: Cli) -> None:
    done = cli.run("micro", "--backend", KEY, pair=False)
    assert done.returncode == 2 and KEY not in done.stdout + done.stderr

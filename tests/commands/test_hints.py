"""Commands and options that messages tell users to type: they exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import click
import pytest

from specgate.cli import cli
from tests.commands.test_help import command_at, every
from tests.support.command import ROOT

COMMAND: Final = re.compile(r"\bspecgate ((?:[a-z][a-z-]*)(?: [^;:,.()`\n]*)?)")
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")
FOREIGN: Final = (
    "backends/servers",
    "backends/offline",
    "specgate/checkpoints/spec_config",
    "specgate/archive/other_tools",
    "specgate/sandbox/bubblewrap.py",
    "reports/pictures/svg.py",
)
"""Where flags of engines and of sandboxes stand, and names of colours."""
OTHERS: Final = re.compile(
    r"--(spec-|speculative-|enable-|skip-|metrics|no-deps|only-binary|version|debug|persistence-mode|query-gpu|head|address"
    r"|cuda-graph-trace|type|verify-commit)"
)
"""Options of engines and their benchmarks, pip, nvidia-smi, nsys, Ray and git; and those that every command has."""


@cache
def sentences() -> tuple[tuple[str, str], ...]:
    """Return (place, text) of every string of the program that is no docstring; X stands for what is filled in."""
    return tuple(_sentences())


def _sentences() -> Iterator[tuple[str, str]]:
    for folder in ("specgate", "gates", "reports", "backends"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
            docs = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
            inner = {id(v) for n in nodes if isinstance(n, ast.JoinedStr) for v in n.values}
            for node in nodes:
                if id(node) in docs or id(node) in inner:
                    continue
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = (str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", "".join(parts)


def options_of(command: click.Command) -> set[str]:
    """Return the options of a command that may be recommended: those that it shows."""
    taken = (p for p in command.params if not (isinstance(p, click.Option) and p.hidden))
    return {name for p in taken for name in (*p.opts, *p.secondary_opts)} | {"--help", "--help-all"}


@cache
def names_of_groups() -> frozenset[str]:
    """Return the names of commands that stand below another one."""
    return frozenset(name for path in every(cli) for name in path[1:])


def faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the command lines in a sentence."""
    for line in COMMAND.findall(text):
        words, command = line.split(), cli
        at: click.Command = command
        path: list[str] = []
        while isinstance(at, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
            below = at.get_command(click.Context(at), words[0])
            if below is None:
                break
            at, path = below, [*path, words.pop(0)]
        if not path and line.split()[0] in names_of_groups():
            yield f"specgate {line.split()[0]} is a command of a group"
        for word in words if path else ():
            if word.startswith("--") and (option := word.partition("=")[0]) not in options_of(at):
                yield f"specgate {' '.join(path)} has no {option}"


def test_command_lines_in_messages_have_present_names_and_options_that_the_command_has() -> None:
    wrong = [(place, fault) for place, text in sentences() for fault in faults(text)]
    stored = {"specgate/analysis/cycle_accounting.py", "gates/samples.py"}
    assert [(place, fault) for place, fault in wrong if place.partition(":")[0] not in stored] == []


@pytest.mark.engine
def test_options_in_messages_are_those_of_some_command() -> None:
    known = {name for path in every(cli) for name in options_of(command_at(path))}
    wrong = [
        (place, option)
        for place, text in sentences()
        if " " in text and not place.startswith(FOREIGN)
        for option in OPTION.findall(text)
        if option not in known and not OTHERS.match(option)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see specgate doctor", "specgate doctor is a command of a group"),
        ("run: specgate smoke --batch 4", "specgate smoke has no --batch"),
        ("specgate runs verify X --polcy Y", "specgate runs verify has no --polcy"),
        ("specgate measures engines; `specgate runs check X --policy Y`", None),
    ],
)
def test_what_cannot_be_typed_is_seen(text: str, fault: str | None) -> None:
    assert list(faults(text)) == ([] if fault is None else [fault])

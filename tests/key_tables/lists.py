"""Tables of exit codes, commands, gates, policies, figures, columns and variables, written from the code."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, takewhile
from types import UnionType
from typing import TypeGuard, get_args

import click

from specgate import errors, plugins
from specgate.archive.other_tools.declarations import TOOLS
from specgate.backends.eagle3.cupy.engine.open import OPTIONS
from specgate.backends.eagle3.lib.refusals import refused_by
from specgate.cli import cli
from specgate.contract.metrics import _METRICS, PER_REQUEST, STATISTICS, per_request
from specgate.planning.policy import SHIPPED
from specgate.reports.texts.csv import METRIC_COLUMNS, SUMMARY_COLUMNS
from tests.key_tables.nouns import first_sentence, markdown
from tests.key_tables.record import record
from tests.key_tables.variables import VARIABLES

MEASURING = ("smoke", "micro", "full", "load", "ab", "scenarios plan")
"""Commands that take the same options."""
LATENCIES = {per_request(statistic, quantity) for statistic in STATISTICS for quantity in PER_REQUEST}


def exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the table of exit codes, from the members of `ExitCode` and the docstrings below them."""
    (enumeration,) = ast.parse(inspect.getsource(errors.ExitCode)).body
    assert isinstance(enumeration, ast.ClassDef)
    meanings = {
        ast.unparse(member.targets[0]): ast.literal_eval(doc.value)
        for member, doc in pairwise(enumeration.body)
        if isinstance(member, ast.Assign) and isinstance(doc, ast.Expr)
    }
    rows = ((str(int(code)), f"`{code.name}`", meanings[code.name]) for code in errors.ExitCode)
    yield "exit codes", markdown(("code", "name", "meaning"), rows)


def commands() -> Iterator[tuple[str, str]]:
    """Yield the table of commands with their own options, and that of the options that measuring commands share."""
    tree = dict(walk(cli, click.Context(cli, info_name="specgate")))
    options = {path: {long_name(o): o for o in command.params if is_shown(o)} for path, command in tree.items()}
    uses = Counter((name, option.help) for path in MEASURING for name, option in options[path].items())
    shared = {use for use, count in uses.items() if count >= len(MEASURING) - 3}
    rows = []
    for path, command in tree.items():
        of_others = shared if path in MEASURING else ()
        own = [f"`{name}`" for name, option in options[path].items() if (name, option.help) not in of_others]
        does = command.get_short_help_str(300).removesuffix(".")
        rows.append((f"`{signature(path, command)}`", does, " ".join(own)))
    yield "commands", markdown(("command", "does", "options of its own"), rows)
    rows = []
    for name, meaning in sorted(shared):
        having = {path: o for path in MEASURING if (o := options[path].get(name)) and o.help == meaning}
        option = next(iter(having.values()))
        missing = ", ".join(path for path in MEASURING if path not in having)
        rows.append((usage(option), first_sentence(option.help or ""), missing))
    yield "shared options", markdown(("option", "meaning", "not in"), rows)


def walk(group: click.Group, context: click.Context, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield path and command of everything that can be typed and is not hidden."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from walk(command, click.Context(command, info_name=name, parent=context), f"{above}{name} ")
        else:
            yield above + name, command


def signature(path: str, command: click.Command) -> str:
    arguments = (p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument))
    return " ".join((path, *arguments)).replace("|", "\\|")


def is_shown(option: click.Parameter) -> TypeGuard[click.Option]:
    return isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts


def long_name(option: click.Option) -> str:
    return max(option.opts, key=len)


def usage(option: click.Option) -> str:
    off = [f"`{name}`" for name in option.secondary_opts]
    return "/".join([*(f"`{name}`" for name in sorted(option.opts, key=len)), *off])


def gates() -> Iterator[tuple[str, str]]:
    """Yield the table of gates and their parameters. One that may be left out stands in brackets."""
    rows = (
        (f"`{name}`", " ".join(f"[`{key}`]" if is_optional(kind) else f"`{key}`" for key, kind in gate.params.items()))
        for name, gate in plugins.gates().items()
    )
    yield "gates", markdown(("gate", "parameters"), rows)


def is_optional(kind: type | UnionType) -> bool:
    return type(None) in get_args(kind)


def policies() -> Iterator[tuple[str, str]]:
    """Yield the table of policies that ship, from the comments that they open with."""
    rows = []
    for file in sorted(SHIPPED.glob("*.yaml")):
        comment = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
        rows.append((f"`{file.stem}`", first_sentence(" ".join(line.strip("# ") for line in comment))))
    yield "policies", markdown(("policy", "judges"), rows)


def figures() -> Iterator[tuple[str, str]]:
    """Yield the table of figures, the latencies of requests by quantity."""
    rows = [(f"`{m.name}`", m.unit, m.definition) for m in _METRICS if m.name not in LATENCIES]
    rows += [(f"`STAT_{quantity}_ms`", "ms", meaning) for quantity, meaning in PER_REQUEST.items()]
    yield "figures", markdown(("figure", "unit", "definition"), rows)


def columns() -> Iterator[tuple[str, str]]:
    """Yield the tables of the columns of CSV files; a column that is a figure is defined where figures are."""
    yield "columns of metrics", markdown(("column", "meaning"), column_rows(METRIC_COLUMNS))
    defined = {m.name for m in _METRICS}
    others = {name: text for name, text in SUMMARY_COLUMNS.items() if name not in defined}
    yield "columns of summary", markdown(("column", "meaning"), column_rows(others))
    yield "figures in summary", ", ".join(f"`{n}`" for n in SUMMARY_COLUMNS if n in defined - LATENCIES) + "\n"


def column_rows(meanings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", text.replace("|", "\\|")) for name, text in meanings.items())


def variables() -> Iterator[tuple[str, str]]:
    """Yield the table of environment variables."""
    rows = ((f"`{name}`", reader, text) for reader, names in VARIABLES.items() for name, text in names.items())
    yield "variables", markdown(("variable", "read by", "meaning"), rows)


def tools() -> Iterator[tuple[str, str]]:
    """Yield the table of other tools whose results are read; of each, what its first declared form says."""
    rows = [
        (
            f"`{tool.name}`",
            tool.form,
            "counts" if tool.counts else "a mean" if tool.length else "–",
            ", ".join(dict.fromkeys(f"`{path.rpartition('.')[2]}`" for path in tool.asked)) or "its name",
        )
        for tool in TOOLS
        if tool.form
    ]
    yield "tools", markdown(("tool", "form", "acceptance from", "matched by"), rows)


def refused_pairs() -> Iterator[tuple[str, str]]:
    """Yield the table of options of the built-in engine that do not go together."""
    yield "refused pairs", markdown(("pair", "why"), (pair.row for pair in refused_by("cupy", OPTIONS)))


LISTS: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (
    exit_codes,
    commands,
    gates,
    policies,
    figures,
    columns,
    variables,
    tools,
    refused_pairs,
    record,
)

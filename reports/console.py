"""The verdict on a terminal of 80 columns: tables where there is one, one plain line per cell and verdict elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from specgate.core import Policy, Run, State, Verdict
from specgate.reports import figures, summary
from specgate.reports.tables import Entry, cell_row, title, tokens_entry

WIDTH = 80
_STYLES = {
    State.PASS: "green",
    State.IMPROVED: "green",
    State.FAIL: "bold red",
    State.INCONCLUSIVE: "yellow",
    State.INVALID: "bold magenta",
    State.ENV_REJECTED: "bold magenta",
    State.SKIPPED: "dim",
}
_COLUMNS = (0, 1, 3, 4, 6, 7)
"""Of `cell_row`: role, acceptance length, tok/s, ms/token, speed-up, tokens."""
_HEAD = ("role", "AL", "tok/s", "ms/token", "speed-up", "tokens")


@dataclass(frozen=True, slots=True)
class ConsoleReport:
    """An `api.Report` without a file."""

    name: str
    lines: Callable[[Run], Iterator[str]]
    filename: None = None

    def render(self, run: Run, policy: Policy) -> str:
        return "\n".join(self.lines(run))


def closing_lines(run: Run) -> Iterator[str]:
    head = summary.headline(run)
    yield f"{head.state}: {head.reason}"
    if head.advice:
        yield head.advice
    yield f"acceptance is {run.pair.acceptance} (pair {run.pair.name})"


# ── plain ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def plain_lines(run: Run) -> Iterator[str]:
    for result in run.cells:
        comparison = run.comparison(result.cell.key)
        parts = [
            f"cell {summary.label(result.cell)}: {result.status}",
            f"{figures.of(result, 'output_tok_s')} tok/s",
            f"{figures.of(result, 'tpot_ms')} ms/token",
        ]
        if comparison is not None:
            tokens = tokens_entry(comparison)
            parts += [
                f"acceptance length {figures.of(result, 'acceptance_length')}",
                f"speed-up {figures.figure(comparison.speedup)}",
                f"tokens {tokens.text} ({tokens.note})",
            ]
        yield ", ".join(parts)
    for verdict in run.verdicts:
        kind = "" if verdict.required else " (advisory)"
        yield f"{verdict.state.value}{kind} {summary.about(verdict)}: {verdict.message}"
        if verdict.next_step:
            yield f"  next: {verdict.next_step}"
    yield from closing_lines(run)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def rich_lines(run: Run) -> Iterator[str]:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="standard")
    for point in dict.fromkeys(r.cell.point for r in run.cells):
        console.print(_cells(title(point), [cell_row(run, r) for r in run.cells if r.cell.point == point]))
    if run.verdicts:
        console.print(_verdicts(run.verdicts))
    for n, line in enumerate(closing_lines(run)):
        console.print(Text(line, style="bold" if n == 0 else ""))
    file = console.file
    assert isinstance(file, io.StringIO)
    yield from file.getvalue().rstrip("\n").split("\n")


def _cells(name: str, rows: Sequence[Sequence[Entry]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(name), title_justify="left", box=SIMPLE_HEAD, expand=True)
    for i, head in enumerate(_HEAD):
        table.add_column(head, justify="right" if i else "left")
    for row in rows:
        table.add_row(*(_two_lines(row[i]) for i in _COLUMNS))
    return table


def _two_lines(entry: Entry) -> Any:
    from rich.text import Text

    return Text.assemble(entry.text, *([("\n" + entry.note, "dim")] if entry.note else []))


def _verdicts(verdicts: Sequence[Verdict]) -> Any:
    """What is not green one by one; what is, a line per rule."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, expand=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("gate and cell", ratio=2)
    table.add_column("because", ratio=3)
    for _, same in groupby(verdicts, key=lambda v: (v.rule, v.reason_code) if v.state is State.PASS else id(v)):
        first, *others = same
        state = first.state.value if first.required else f"({first.state.value})"
        cell = summary.short(first.cell) if first.cell and not others else ""
        because = f"{len(others) + 1} cells: {first.reason_code.replace('_', ' ')}" if others else first.message
        table.add_row(
            Text(state, style=_STYLES[first.state]),
            Text.assemble(first.rule, *([("\n" + cell, "dim")] if cell else [])),
            Text.assemble(because, *([("\nnext: " + first.next_step, "dim")] if first.next_step else [])),
        )
    return table


REPORT = ConsoleReport("console", rich_lines)
PLAIN = ConsoleReport("plain", plain_lines)

"""The reports `console` and `plain`: tables for a terminal of 80 columns or more, or one line per cell and verdict."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specgate.analysis.cell_names import cell_name
from specgate.contract import Policy, Run, State, Value, Verdict
from specgate.contract.protocols import visible
from specgate.reports.common import figures, machine, memory, own_prompts, provenance, summary, token_checks, variants
from specgate.reports.common.tables import CELL_HEAD, Entry, Group, cell_groups, tokens_entry

LEAST, MOST = 80, 160
"""Least and most columns that are used. Narrower terminals wrap; in wider tables rows would be hard to follow."""
STYLES = {
    State.PASS: "green",
    State.IMPROVED: "green",
    State.FAIL: "bold red",
    State.INCONCLUSIVE: "yellow",
    State.INVALID: "bold magenta",
    State.ENV_REJECTED: "bold magenta",
    State.NOT_JUDGED: "yellow",
    State.SKIPPED: "dim",
}
_COLUMNS = {"role": 8, "acceptance length": 11, "tok/s": 8, "speed-up": 11, "tokens": 12, "repeats": 7}
"""The columns of `CELL_HEAD` that are shown → the least width at which an interval or a reason does not wrap."""
_SHORT = {"acceptance length": "AL"}


@dataclass(frozen=True, slots=True)
class ConsoleReport:
    """An `protocols.Report` that is printed, not written to a file."""

    name: str
    lines: Callable[[Run], Iterator[str]]
    filename: None = None

    def render(self, run: Run, policy: Policy) -> str:
        return "\n".join(self.lines(run))


def closing_lines(run: Run) -> Iterator[str]:
    """The state with its reason, what to do next, and where acceptance comes from."""
    head = summary.headline(run)
    yield f"{head.state}: {head.reason}"
    if head.advice:
        yield head.advice
    yield from summary.break_evens(run)
    yield from summary.not_judged(run)
    yield f"acceptance is {run.acceptance} (pair {provenance.pair(run)})"
    if told := ", ".join(f"{name} {value}" for name, value in provenance.engine(run)):
        yield told
    yield from filter(None, (token_checks.own_word(run), token_checks.sampled(run), token_checks.cost(run)))
    yield from own_prompts.sentences(run)
    yield from memory.sentences(run)
    yield from variants.sentences(run)
    yield from machine.sentences(run)


# ── plain ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def opening_lines(run: Run) -> Iterator[str]:
    """The warning of a full run that began before its micro gates were green."""
    if warning := summary.out_of_order(run):
        yield warning


def plain_lines(run: Run) -> Iterator[str]:
    """The report without tables: one line per cell and per verdict. Verdicts on cells without figures share a line, if
    their reason is one.
    """
    yield from opening_lines(run)
    length = f"{summary.acceptance_label(run) or 'acceptance'} length"
    for result in run.cells:
        comparison = run.comparison(result.cell.key)
        note = summary.cell_note(run, result)
        parts = [
            f"cell {cell_name(result.cell.key, run.scenarios)}: {result.status}" + (f" ({note})" if note else ""),
            f"{figures.of(result, *figures.SPEED)} tok/s",
            f"{figures.of(result, *figures.PER_TOKEN)} ms/token",
        ]
        if comparison is not None:
            parts += [
                _in_words(length, result.values.get("acceptance_length")),
                _in_words("speed-up", comparison.speedup),
                _noted("tokens", tokens_entry(run, comparison)),
            ]
        parts.append(_in_words("repeats", result.values.get("repeated_8gram_share")))
        yield ", ".join(parts)
    for same in _of_one_cause(run):
        first = same[0]
        kind = "" if first.required else " (advisory)"
        rules, cells = (list(dict.fromkeys(values)) for values in ((v.rule for v in same), (v.cell for v in same)))
        where = cell_name(first.cell, run.scenarios) if len(cells) == 1 else f"{len(cells)} cells"
        about = summary.about(first, run.scenarios) if len(same) == 1 else f"{', '.join(rules)} on {where}"
        yield f"{first.state.value}{kind} {about}: {first.message}"
        if first.next_step:
            yield f"  next: {first.next_step}"
    yield from closing_lines(run)


def _of_one_cause(run: Run) -> list[list[Verdict]]:
    """Verdicts on cells without figures, by their cause; every other one by itself."""
    groups: dict[tuple[object, ...], list[Verdict]] = {}
    contradicted = {(result.cell.key, result.reason_code) for result in run.cells if result.reason_code}
    for number, v in enumerate(run.verdicts):
        shared = v.reason_code == "not_measured" or (v.cell, v.reason_code) in contradicted
        key = (v.state, v.required, v.message, v.next_step) if shared else (number,)
        groups.setdefault(key, []).append(v)
    return list(groups.values())


def _in_words(name: str, value: Value | None) -> str:
    return _noted(name, Entry(figures.figure(value), figures.reason(value) or figures.span(value)))


def _noted(name: str, entry: Entry) -> str:
    return f"{name} {entry.text}" + (f" ({entry.note})" if entry.note else "")


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def rich_lines(run: Run) -> Iterator[str]:
    """The report with tables and colours."""
    yield from printed(
        *(words((line, "bold red")) for line in opening_lines(run)),
        *(_cells(group) for group in cell_groups(run)),
        *([_verdicts(run)] if run.verdicts else []),
        *(words((line, "" if n else "bold")) for n, line in enumerate(closing_lines(run))),
    )


def words(*parts: str | tuple[str, str]) -> Any:
    """A rich Text made of `parts`, each with a style or none. Control characters in them are shown as escapes, so that
    they can neither set a style nor move the cursor.
    """
    from rich.text import Text

    styled = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in styled))


def columns() -> int:
    """How many columns of the terminal are used."""
    return min(max(shutil.get_terminal_size((LEAST, 24)).columns, LEAST), MOST)


def printed(*renderables: Any) -> Iterator[str]:
    """The lines that rich renders, as wide as the terminal. They have no colour if NO_COLOR is set."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=columns(), force_terminal=True, color_system="standard")
    console.print(*renderables, sep="\n")
    yield from file.getvalue().rstrip("\n").split("\n")


def _cells(group: Group) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    reasons = [f"{row[0].text}: {row[0].note}" for row in group.rows if row[0].note]
    table = Table(
        title=words(group.title),
        title_justify="left",
        caption=words("\n".join(reasons)) if reasons else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    for head, width in _COLUMNS.items():
        table.add_column(_SHORT.get(head, head), justify="left" if head == "role" else "right", min_width=width)
    for row in group.rows:
        entries = {**dict(zip(CELL_HEAD, row, strict=True)), "role": Entry(row[0].text)}
        table.add_row(*(_two_lines(entries[head]) for head in _COLUMNS))
    return table


def _two_lines(entry: Entry) -> Any:

    return words(entry.text, *([("\n" + entry.note, "dim")] if entry.note else []))


def _verdicts(run: Run) -> Any:
    """The table of verdicts.

    If a rule says the same of several cells, they share a row. Green cells are only counted; the others are named.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("gate and cells", ratio=6)
    table.add_column("because", ratio=7)
    for same in _alike(run.verdicts):
        first = same[0]
        state = first.state.value if first.required else f"({first.state.value})"
        counted = first.state is State.PASS and len(same) > 1
        cells = [] if counted else [cell_name(v.cell, run.scenarios) for v in same if v.cell]
        because = f"{len(same)} cells: {first.reason_code.replace('_', ' ')}" if counted else first.message
        table.add_row(
            words((state, STYLES[first.state])),
            words(first.rule, *(("\n" + cell, "dim") for cell in cells)),
            words(because, *([("\nnext: " + first.next_step, "dim")] if first.next_step else [])),
        )
    return table


def _alike(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    groups: dict[tuple[str | None, ...], list[Verdict]] = {}
    for v in verdicts:
        words = (v.reason_code,) if v.state is State.PASS else (v.message, v.next_step)
        groups.setdefault((v.rule, v.state, *words), []).append(v)
    return list(groups.values())


REPORT = ConsoleReport("console", rich_lines)
PLAIN = ConsoleReport("plain", lambda run: map(visible, plain_lines(run)))

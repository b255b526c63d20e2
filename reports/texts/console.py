"""The reports `console` and `plain`: figures, rules that are not green, and the answer. `details` has everything."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specgate.analysis.cell_names import cell_name
from specgate.analysis.intervals.other_prompts import LIKE_THESE, THESE
from specgate.analysis.load.figures import unit_of
from specgate.contract import CellResult, Comparison, Policy, Run, State, Value, Verdict
from specgate.contract.metrics import PERCENTILES
from specgate.contract.protocols import visible
from specgate.reports.common import (
    figures,
    latencies,
    machine,
    memory,
    own_prompts,
    provenance,
    summary,
    token_checks,
    variants,
)
from specgate.reports.common.answer import answer, which_counts
from specgate.reports.common.tables import Entry, tokens_entry

LEAST, MOST = 80, 160
"""Least and most columns that are used. Narrower terminals wrap; in wider tables rows would be hard to follow."""
NAME = 20
"""Least width of a cell's name, over more lines if need be."""
CELLS = 7
"""Most cells that have a row. The worst come first, and a last line counts the others."""
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


@dataclass(frozen=True, slots=True)
class ConsoleReport:
    """A `protocols.Report` that is printed, not written to a file."""

    name: str
    lines: Callable[[Run], Iterator[str]]
    filename: None = None

    def render(self, run: Run, policy: Policy) -> str:
        return "\n".join(self.lines(run))


# ── short ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Line = tuple[str, str, str]
"""Style, the words that have it, and the rest of the line."""


def short_lines(run: Run) -> Iterator[Line]:
    """Yield a row per cell, the rules that are not green with what to do, and the answer in words."""
    if warning := summary.out_of_order(run):
        yield "bold red", warning, ""
    first = answer(run) if run.break_even else None
    if first:
        yield "bold", first, ""
    yield from (("", "", row) for row in (*cell_rows(run), *latency_rows(run)))
    open_verdicts = [v for v in run.verdicts if v.state not in summary.QUIET and not summary.repeats_the_end(run, v)]
    objections = _of_one_cause(open_verdicts, by_rule=True)
    for same in sorted(objections, key=summary.gravity):
        yield from objection(run, same)
    head = summary.headline(run)
    if head.code.value and (run.failures or summary.lacks_rules(run) or not objections):
        yield "bold", head.state, f": {head.reason}"
        if head.advice:
            yield "dim", f"  next: {head.advice}", ""
    gaps = dict.fromkeys(f"Not judged: {gap.kind}: {gap.why}." for gap in run.not_judged if gap.why)
    took = token_checks.cost(run) if "starts" in run.check_seconds else None
    keys = tuple(f"{result.cell.key}:" for result in run.cells if run.break_even)
    doubts = (f"Warning: {warning}." for warning in run.warnings if warning.startswith(keys))
    sentences = (
        *gaps,
        *doubts,
        *summary.accepted_breaks(run),
        *which_counts(run),
        None if first else answer(run),
        took and f"{took[0].upper()}{took[1:]}.",
    )
    yield from (("", "", sentence) for sentence in sentences if sentence)


def objection(run: Run, same: Sequence[Verdict]) -> Iterator[Line]:
    """Yield the rule and the first cell of verdicts of one cause, with the reason, and what to do next.

    Of several cells that are only advised about, their number is enough.
    """
    first = same[0]
    rules, cells = (list(dict.fromkeys(values)) for values in ((v.rule for v in same), (v.cell for v in same)))
    where = f" on {cell_name(first.cell, run.scenarios)}" if first.cell else ""
    if brief := len(cells) > 1 and not first.required:
        where = f" in {len(cells)} cells"
    elif len(cells) > 1:
        where += f" and {figures.counted(len(cells) - 1, 'more cell')}"
    kind = "" if first.required else " (advisory)"
    yield STYLES[first.state], first.state.value, f"{kind} {', '.join(rules)}{where}: {first.message}"
    if first.next_step and not brief:
        yield "dim", f"  next: {first.next_step}", ""


def cell_rows(run: Run) -> Iterator[str]:
    """Yield a row per cell with speculation, under a head. A baseline has one if it lacks figures, or is alone."""
    alone = not any(r.cell.role.speculative for r in run.cells)
    results = [r for r in run.cells if r.cell.role.speculative or alone or r.status != "ok"]
    if not results:
        return
    worst = sorted(results, key=lambda r: summary.gravity(v for v in run.verdicts if v.cell == r.cell.key))[:CELLS]
    named = [r for r in results if r in worst]
    length = "AL" if run.acceptance == "real" else f"{run.acceptance} AL"
    own = any(figures.like_these(run, run.comparison(r.cell.key)) for r in named)
    heads = [["", "speed-up (95 %)", *["prompts"] * own, length, "tok/s", "tokens"]]
    heads += [["", THESE, "like these", "", "", ""]] if own else []
    rows = [[name, *cell_figures(run, r, own)] for name, r in zip(short_names(run, named), named, strict=True)]
    notes = [*[""] * len(heads), *(summary.cell_note(run, result) or "" for result in named)]
    for lines, note in zip(aligned([*heads, *rows]), notes, strict=True):
        yield from lines
        if note:
            yield f"  {note}"
    if len(results) > CELLS:
        yield f"  and {figures.counted(len(results) - CELLS, 'more cell')}"


def latency_rows(run: Run) -> Iterator[str]:
    """Yield the latencies and errors of a load run's roles at the first levels, or of a server without a baseline,
    under a head; nothing of any other run.
    """
    if not (run.kind == "load" or (summary.alone(run) and latencies.served(run))) or not run.cells:
        return
    unit = unit_of(run.cells[0].cell.point.rate is not None) if run.kind == "load" else "batch"
    quantities = latencies.QUANTITIES
    rows = [["", *(f"{quantity.upper()}, ms" for quantity in quantities), "", "request"]]
    rows.append([unit, *["/".join(f"p{percent}" for percent in PERCENTILES)] * len(quantities), "tok/s", "errors"])
    for point in list(dict.fromkeys(r.cell.point for r in run.cells))[: latencies.SHOWN]:
        for result in (r for r in run.cells if r.cell.point == point):
            percentiles = [latencies.percentiles_of(result, q).replace(" / ", "/") for q in quantities]
            name = f"{point.level:g} · {result.cell.role_name}"
            rows.append([name, *percentiles, figures.of(result, *figures.SPEED), latencies.errors(result)])
    fits = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2 <= columns()
    for table in [rows] if fits else [[row[:3] for row in rows], [[row[0], *row[3:]] for row in rows]]:
        for lines in aligned(table):
            yield from lines


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the lines of each row of a table. The first column is wrapped if the terminal has no room for it."""
    longest, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    room = min(longest, max(columns() - sum(widths) - 2 * len(widths), NAME))
    for name, *texts in rows:
        *above, last = textwrap.wrap(name, room) or [""]
        yield [*above, "  ".join([last.ljust(room), *map(str.rjust, texts, widths)]).rstrip()]


def cell_figures(run: Run, result: CellResult, own: bool) -> list[str]:
    """Return the figures of a cell's row; if `own`, with the interval of the speed-up on prompts like these."""
    comparison = run.comparison(result.cell.key)
    speedup = comparison.speedup if comparison else None
    interval = figures.reason(speedup) or (figures.span(speedup) or "").replace(" … ", "–")
    return [
        figures.figure(speedup) + (f" ({interval})" if interval else ""),
        *([others_of(run, comparison)] if own else []),
        figures.of(result, "acceptance_length"),
        figures.of(result, *figures.SPEED),
        tokens_entry(run, comparison).text,
    ]


def others_of(run: Run, comparison: Comparison | None) -> str:
    """Return the interval on prompts like these, or of how few prompt sets it would be."""
    value = figures.like_these(run, comparison)
    few = figures.NONE if value is None else figures.counted(value.n, "set")
    return (figures.span(value) or few).replace(" … ", "–")


def short_names(run: Run, results: Sequence[CellResult]) -> list[str]:
    """Return the names of cells, without their scenario where that tells no two of them apart."""
    scenarios = [r.cell.point.scenario for r in results]
    bare = [cell_name(r.cell.key, {s: run.scenarios[s]}) for r, s in zip(results, scenarios, strict=True)]
    return bare if len(set(bare)) == len(bare) else [cell_name(r.cell.key, run.scenarios) for r in results]


# ── everything ───────────────────────────────────────────────────────────────────────────────────────────────────────


def every_line(run: Run) -> Iterator[Line]:
    """Yield a line per cell, one per verdict, and what the figures rest on. Verdicts on cells without figures share a
    line, if their reason is one. Each next step stands once, below the first verdict that asks for it.
    """
    if warning := summary.out_of_order(run):
        yield "bold red", warning, ""
    length = f"{summary.acceptance_label(run) or 'acceptance'} length"
    for result in run.cells:
        comparison = run.comparison(result.cell.key)
        note = summary.cell_note(run, result)
        parts = [
            f"{cell_name(result.cell.key, run.scenarios)}: {result.status}" + (f" ({note})" if note else ""),
            f"{figures.of(result, *figures.SPEED)} tok/s",
            f"{figures.of(result, *figures.PER_TOKEN)} ms/token",
        ]
        if comparison is not None:
            parts += [
                _in_words(length, result.values.get("acceptance_length"), LIKE_THESE),
                _in_words("speed-up", comparison.speedup, THESE),
                *filter(None, [figures.others(run, comparison)]),
                _noted("tokens", tokens_entry(run, comparison)),
            ]
        parts.append(_in_words("repeats", result.values.get("repeated_8gram_share")))
        yield "", "cell ", ", ".join(parts)
    advised = set[Line]()
    for same in _of_one_cause(run.verdicts):
        verdict, *advice = objection(run, same)
        yield verdict
        yield from (line for line in advice if line not in advised)
        advised |= {*advice}
    head = summary.headline(run)
    yield "bold", head.state, f": {head.reason}"
    if head.advice and head.advice not in {text.removeprefix("  next: ") for _, text, _ in advised}:
        yield "", "", head.advice
    yield from (("", "", fact) for fact in facts(run))


def facts(run: Run) -> Iterator[str]:
    """Yield sentences on what was not judged, and on the source of the figures: engine, checks, prompts, machine."""
    yield from summary.break_evens(run)
    yield from summary.not_judged(run)
    yield f"acceptance is {run.acceptance} (pair {provenance.pair(run)})"
    if engine := ", ".join(f"{name} {value}" for name, value in provenance.engine(run)):
        yield engine
    yield from filter(None, (token_checks.own_word(run), token_checks.sampled(run), token_checks.cost(run)))
    for sentences in (own_prompts.sentences, memory.sentences, variants.sentences, machine.sentences):
        yield from sentences(run)


def _of_one_cause(verdicts: Sequence[Verdict], by_rule: bool = False) -> list[list[Verdict]]:
    """Group verdicts on cells without figures by their cause; every other one stands alone, or with those of its rule.

    The same reason of another rule, with the same next step, is the same cause. `by_rule`: so is a reason of that kind
    on another cell.
    """
    groups: dict[tuple[object, ...], list[Verdict]] = {}
    rules_of: dict[tuple[object, ...], set[str]] = {}
    for v in verdicts:
        rules_of.setdefault((v.cell, v.message), set()).add(v.rule)
    for number, v in enumerate(verdicts):
        shared = v.reason_code == "not_measured" or len(rules_of[v.cell, v.message]) > 1
        reason = v.reason_code if by_rule and v.reason_code else v.message
        key = (v.state, v.required, reason, v.next_step) if shared else (v.state, v.rule) if by_rule else (number,)
        groups.setdefault(key, []).append(v)
    return list(groups.values())


def _in_words(name: str, value: Value | None, about: str = "") -> str:
    span = figures.span(value)
    interval = f"{span} {about}".rstrip() if span else None
    return _noted(name, Entry(figures.figure(value), figures.reason(value) or interval))


def _noted(name: str, entry: Entry) -> str:
    return f"{name} {entry.text}" + (f" ({entry.note})" if entry.note else "")


# ── on a terminal ────────────────────────────────────────────────────────────────────────────────────────────────────


def plain(line: Line) -> str:
    """Return a line for a log: as long as it is, and without colours."""
    return visible(line[1] + line[2])


def styled(line: Line) -> Iterator[Any]:
    """Yield the lines of a terminal that `line` needs, in colours."""
    style, head, rest = line
    for n, text in enumerate(textwrap.wrap(head + rest, columns(), subsequent_indent="  ", break_on_hyphens=False)):
        cut = len(text) if not rest else 0 if n else len(head)
        yield words((text[:cut], style), text[cut:])


def words(*parts: str | tuple[str, str]) -> Any:
    """A rich Text made of `parts`, each with a style or none. Control characters in them are shown as escapes, so that
    they can neither set a style nor move the cursor.
    """
    from rich.text import Text

    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))


def columns() -> int:
    """Number of columns of the terminal that are used."""
    return min(max(shutil.get_terminal_size((LEAST, 24)).columns, LEAST), MOST)


def printed(*renderables: Any) -> Iterator[str]:
    """The lines that rich renders, as wide as the terminal. They have no colour if NO_COLOR is set, and no style at all
    where the terminal knows none.
    """
    from rich.console import Console

    file = io.StringIO()
    system: Literal["standard"] | None = None if os.environ.get("TERM") in ("dumb", "unknown") else "standard"
    console = Console(file=file, width=columns(), force_terminal=True, color_system=system)
    console.print(*renderables, sep="\n")
    yield from file.getvalue().rstrip("\n").split("\n")


REPORT = ConsoleReport("console", lambda run: printed(*(text for line in short_lines(run) for text in styled(line))))
PLAIN = ConsoleReport("plain", lambda run: map(plain, short_lines(run)))
DETAILS = ConsoleReport("details", lambda run: map(plain, every_line(run)))

"""A user's own prompts in reports: file, count, lengths, acceptance by category, and how many answers are right."""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.quality.scores import CHANGE, LOST, SCORE, WON
from specgate.contract import CellResult, Point, Run
from specgate.contract.scenarios.own_prompts import in_words
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table

LENGTH = "acceptance_length["


def sentences(run: Run) -> Iterator[str]:
    """One sentence per point whose prompts come from a file, and one on its answers where their keys are known."""
    for point in dict.fromkeys(r.cell.point for r in run.cells):
        yield from of_point(run, point)


def of_point(run: Run, point: Point) -> Iterator[str]:
    """The sentences of one point."""
    yield from filter(None, (in_words(run.prompts.get(point.key, {})), answers(run, point)))


def answers(run: Run, point: Point) -> str | None:
    """How many answers of each role are right, and how spec's differ from the baseline's; None without answer keys."""
    results = [r for r in run.cells if r.cell.point == point and SCORE in r.values]
    roles = (f"{r.cell.role_name} {figures.of(r, SCORE)}{changed(r)}" for r in results)
    return f"right answers of {results[0].values[SCORE].n}: {', '.join(roles)}" if results else None


def changed(result: CellResult) -> str:
    """The change against the baseline with its interval, in points, and the answers behind it."""
    change, lost, won = (result.values.get(name) for name in (CHANGE, LOST, WON))
    if change is None or change.value is None or change.ci_low is None or change.ci_high is None:
        return ""
    points = f"{100 * change.value:+.1f} points, {100 * change.ci_low:+.1f} … {100 * change.ci_high:+.1f}"
    return f" ({points}; {figures.figure(lost)} lost, {figures.figure(won)} won)"


def by_category(run: Run, point: Point) -> Table | None:
    """Acceptance length of every category, a column per speculative role; None where there are no categories."""
    results = [r for r in run.cells if r.cell.point == point and r.cell.role.speculative]
    names = list(dict.fromkeys(name for r in results for name in r.values if name.startswith(LENGTH)))
    if not names:
        return None
    rows: list[list[str | Entry]] = []
    for name in names:
        lengths = [r.values.get(name) for r in results]
        counted = max(value.n for value in lengths if value is not None)
        entries = [Entry(figures.figure(v), figures.reason(v) or figures.span(v)) for v in lengths]
        rows.append([name.removeprefix(LENGTH).removesuffix("]"), str(counted), *entries])
    head = ("category", "prompts", *(f"acceptance length, {r.cell.role_name}" for r in results))
    return Table(head, rows)

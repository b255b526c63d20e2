"""A user's own prompts in reports: file, count, lengths, and acceptance by category."""

from __future__ import annotations

from collections.abc import Iterator

from specgate.contract import Point, Run
from specgate.contract.scenarios.own_prompts import in_words
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table

LENGTH = "acceptance_length["


def sentences(run: Run) -> Iterator[str]:
    """One sentence per point whose prompts come from a file."""
    for point in dict.fromkeys(r.cell.point for r in run.cells):
        if sentence := in_words(run.prompts.get(point.key, {})):
            yield sentence


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

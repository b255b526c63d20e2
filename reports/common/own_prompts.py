"""A user's own prompts in reports: file, count, lengths, and acceptance by category.

`Run.prompts` has what is stored of them. A file that somebody has edited may hold anything there, so what is not as
expected is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specgate.contract import Point, Run
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table

LENGTH = "acceptance_length["


def sentences(run: Run) -> Iterator[str]:
    """One sentence per point whose prompts come from a file."""
    for point in dict.fromkeys(r.cell.point for r in run.cells):
        if sentence := in_words(run, point):
            yield sentence


def in_words(run: Run, point: Point) -> str | None:
    """Return the file of the prompts, their number, form and lengths; None for any other source."""
    about: Mapping[str, Any] = run.prompts.get(point.key, {})
    file, length, how = (about.get(key) for key in ("file", "length_tokens", "rendered"))
    if not all(isinstance(part, Mapping) for part in (file, length, how)):
        return None
    assert isinstance(file, Mapping) and isinstance(length, Mapping) and isinstance(how, Mapping)
    chosen = sum(n for n in how.values() if isinstance(n, int))
    spread = ", ".join(f"{length.get(key):,}" for key in ("min", "median", "max") if _number(length.get(key)))
    more = f"; warm-up {about['warmup']}" if isinstance(about.get("warmup"), str) else ""
    return (
        f"{chosen} of {file.get('prompts')} prompts from {file.get('name')} ({file.get('format')}), as "
        f"{' and '.join(map(str, how))}: {spread} tokens (shortest, median, longest){more}"
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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

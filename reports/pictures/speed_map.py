"""Batch × context × draft length: where does speculation pay?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specgate.core import Comparison, Role, Run
from specgate.reports.figures import NONE, ratio
from specgate.reports.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

NAME: Final = "Speed-up by batch and context"
FULL: Final = 3.0
"""The speed-up, or slow-down, at which a field has its full colour."""

Fields = Mapping[tuple[int, int], float]
"""(batch, context) → speed-up."""


def maps(run: Run) -> Iterator[Picture]:
    """One map per draft length, and per scenario where several share a batch and a context."""
    quoted = [c for c in run.comparisons if c.speedup.value is not None]
    by_role: dict[Role, list[Comparison]] = {}
    for comparison in quoted:
        by_role.setdefault(comparison.cell.role, []).append(comparison)
    found = [(role, title, fields) for role, of in sorted(by_role.items()) for title, fields in fields_of(of)]
    wide = [(role, title, fields) for role, title, fields in found if len(fields) > 1]
    if not wide:
        yield left_out(NAME, "no two batches or contexts were compared")
    for n, (role, title, fields) in enumerate(wide):
        yield one_map(f"map{n}", role, title, fields)


def fields_of(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, Fields]]:
    points = [c.cell.point for c in comparisons]
    shared = Counter((p.batch, p.context) for p in points).most_common(1)[0][1] > 1
    for scenario in dict.fromkeys(p.scenario for p in points) if shared else [""]:
        mine = [c for c in comparisons if c.cell.point.scenario == scenario or not shared]
        yield scenario, {(c.cell.point.batch, c.cell.point.context): c.speedup.value or math.nan for c in mine}


def one_map(key: str, role: Role, scenario: str, fields: Fields) -> Picture:
    batches, contexts = (sorted({place[axis] for place in fields}) for axis in (0, 1))

    def draw(axes: Any) -> None:
        for (batch, context), value in fields.items():
            x, y = contexts.index(context), batches.index(batch)
            strength = min(1.0, abs(math.log(value)) / math.log(FULL))
            tint = svg.GAIN if value >= 1 else svg.FLOOR
            axes.bar(x, 1, 1, y - 0.5, color=tint, alpha=round(0.06 + 0.34 * strength, 3), linewidth=0)
            axes.annotate(ratio(value), (x, y), ha="center", va="center")
        for start, end in break_even(fields, batches, contexts):
            axes.plot(*zip(start, end, strict=True), color=svg.INK, linewidth=2.4, solid_capstyle="round")
        axes.set(xlabel="context (tokens)", ylabel="batch")
        axes.set(xlim=(-0.5, len(contexts) - 0.5), ylim=(-0.5, len(batches) - 0.5))
        axes.set_xticks(range(len(contexts)), [f"{c:,}" for c in contexts])
        axes.set_yticks(range(len(batches)), [str(b) for b in batches])

    title = f"{NAME}: {role}" + (f", {scenario}" if scenario else "")
    words = "; ".join(f"batch {b}, context {c:,}: {ratio(v)}" for (b, c), v in sorted(fields.items()))
    caption = "Times the baseline's tokens per second. Thick line: break-even, between fields above and below 1×."
    if not any(break_even(fields, batches, contexts)):
        caption = "Times the baseline's tokens per second. All on one side of break-even, so there is no line to draw."
    height = 0.9 + 0.45 * max(2, len(batches))
    drawing = svg.drawn(key, f"{title}. {words}.", draw, height)
    rows = [[str(b), *(ratio(fields[b, c]) if (b, c) in fields else NONE for c in contexts)] for b in batches]
    return Picture(title, caption, drawing, [Table(("batch", *(f"{c:,}" for c in contexts)), rows)])


def break_even(
    fields: Fields, batches: Sequence[int], contexts: Sequence[int]
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Edges between neighbouring fields of which one gains and the other loses, as (x, y) of their ends."""
    for (batch, context), value in fields.items():
        x, y = contexts.index(context), batches.index(batch)
        right = fields.get((batch, contexts[x + 1])) if x + 1 < len(contexts) else None
        above = fields.get((batches[y + 1], context)) if y + 1 < len(batches) else None
        if right is not None and (right < 1) != (value < 1):
            yield (x + 0.5, y - 0.5), (x + 0.5, y + 0.5)
        if above is not None and (above < 1) != (value < 1):
            yield (x - 0.5, y + 0.5), (x + 0.5, y + 0.5)

"""Speed-ups of cells, as a row and as a map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specgate.contract import Comparison, Role, Run
from specgate.reports.common.figures import NONE, ratio, span
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

NAME: Final = "Speed-up by batch and context"
FULL: Final = 3.0
"""The speed-up or slow-down at which a field of the map has its full colour."""

Fields = Mapping[tuple[int, int], tuple[float, ...]]
"""(batch, context) → the speed-ups of the scenarios that ran there, lowest first."""


def maps(run: Run) -> Iterator[Picture]:
    """One map per draft length that was measured at two or more combinations of batch and context."""
    by_role: dict[Role, list[Comparison]] = {}
    for comparison in run.comparisons:
        if comparison.speedup.value is not None:
            by_role.setdefault(comparison.cell.role, []).append(comparison)
    wide = [(role, fields) for role, of in sorted(by_role.items()) if len(fields := fields_of(of)) > 1]
    if not wide:
        yield left_out(NAME, "no two batches or contexts were compared")
    for role, fields in wide:
        yield one_map(role, fields)


def fields_of(comparisons: Sequence[Comparison]) -> Fields:
    ratios: dict[tuple[int, int], list[float]] = {}
    for c in comparisons:
        ratios.setdefault((c.cell.point.batch, c.cell.point.context), []).append(c.speedup.value or math.nan)
    return {place: tuple(sorted(values)) for place, values in ratios.items()}


def one_map(role: Role, fields: Fields) -> Picture:
    batches, contexts = (sorted({place[axis] for place in fields}) for axis in (0, 1))
    least = {place: values[0] for place, values in fields.items()}
    edges = list(break_even(least, batches, contexts))

    def draw(axes: Any) -> None:
        for (batch, context), values in fields.items():
            x, y = contexts.index(context), batches.index(batch)
            strength = min(1.0, abs(math.log(values[0])) / math.log(FULL))
            tint = svg.GAIN if values[0] >= 1 else svg.FLOOR
            axes.bar(x, 1, 1, y - 0.5, color=tint, alpha=round(0.06 + 0.34 * strength, 3), linewidth=0)
            axes.annotate(said(values).replace(" … ", "\n… "), (x, y), ha="center", va="center")
        for start, end in edges:
            axes.plot(*zip(start, end, strict=True), color=svg.INK, linewidth=2.4, solid_capstyle="round")
        axes.set(xlabel="context (tokens)", ylabel="batch")
        axes.set(xlim=(-0.5, len(contexts) - 0.5), ylim=(-0.5, len(batches) - 0.5))
        axes.set_xticks(range(len(contexts)), [f"{c:,}" for c in contexts])
        axes.set_yticks(range(len(batches)), [str(b) for b in batches])

    title = f"{NAME}: {role}"
    caption = "Times the baseline's tokens per second. "
    caption += "Thick line: break-even." if edges else "No two neighbours lie on different sides of break-even."
    if any(len(values) > 1 for values in fields.values()):
        caption += " Where several scenarios share a field: the least, which decides the colour, and the greatest."
    words = "; ".join(f"batch {b}, context {c:,}: {said(values)}" for (b, c), values in sorted(fields.items()))
    drawing = svg.drawn(f"map-{role}", f"{title}. {words}.", draw, 0.9 + 0.45 * max(2, len(batches)))
    rows = [[str(b), *(said(fields[b, c]) if (b, c) in fields else NONE for c in contexts)] for b in batches]
    return Picture(title, caption, drawing, [Table(("batch", *(f"{c:,}" for c in contexts)), rows)])


def said(values: Sequence[float]) -> str:
    least, greatest = ratio(values[0]), ratio(values[-1])
    return least if least == greatest else f"{least} … {greatest}"


def break_even(
    fields: Mapping[tuple[int, int], float], batches: Sequence[int], contexts: Sequence[int]
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """The edges between neighbouring fields of which one is faster and one slower than the baseline, as (x, y) of their
    two ends.
    """
    for (batch, context), value in fields.items():
        x, y = contexts.index(context), batches.index(batch)
        right = fields.get((batch, contexts[x + 1])) if x + 1 < len(contexts) else None
        above = fields.get((batches[y + 1], context)) if y + 1 < len(batches) else None
        if right is not None and (right < 1) != (value < 1):
            yield (x + 0.5, y - 0.5), (x + 0.5, y + 0.5)
        if above is not None and (above < 1) != (value < 1):
            yield (x - 0.5, y + 0.5), (x + 0.5, y + 0.5)


def of_pairs(key: str, comparisons: Sequence[Comparison], floors: Mapping[Role, float]) -> Picture:
    """Every pair's speed-up, their mean with its interval, break-even at 1, and the policy's floor if there is one."""
    name = "Speed-up over the paired baseline"
    if not comparisons:
        return left_out(name, "no pair of blocks whose speed may be quoted")

    def draw(axes: Any) -> None:
        for row, comparison in enumerate(comparisons):
            draw_row(axes, row, comparison, floors.get(comparison.cell.role))
        axes.axvline(1, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        axes.set(xlabel="times the baseline's tokens per second", ylim=(len(comparisons) - 0.45, -0.55))
        axes.set_yticks(range(len(comparisons)), [c.cell.role_name for c in comparisons])
        axes.grid(axis="x", color=svg.GRID, linewidth=0.7)
        axes.margins(x=0.08)
        svg.ratio_axis(axes)

    caption = "Dot: mean; thick line: 95 % interval; ▲ baseline ran first, ▼ spec ran first; dashed: break-even" + (
        "; red: what the policy asks." if floors else "."
    )
    words = "; ".join(f"{c.cell.role_name}: {c.speedup.value:.2f} over {len(c.log_ratios)} pairs" for c in comparisons)
    height = max(svg.HEIGHT, 1.1 + 0.5 * len(comparisons))
    drawing = svg.drawn(f"{key}-speedups", f"Speed-up of every pair of blocks. {words}.", draw, height)
    return Picture(name, caption, drawing, [table(comparisons)])


def draw_row(axes: Any, row: int, comparison: Comparison, floor: float | None) -> None:
    tint, value = svg.colour(comparison.cell.role), comparison.speedup
    pairs = list(zip(comparison.log_ratios, comparison.orders, strict=True))
    for marker, sign in (("^", 1), ("v", -1)):
        ratios = [math.exp(d) for d, order in pairs if order == sign]
        axes.plot(ratios, [row + 0.2 * sign] * len(ratios), marker, color=tint, alpha=0.55, markersize=4)
    if value.ci_low is not None and value.ci_high is not None:
        axes.plot([value.ci_low, value.ci_high], [row, row], color=tint, linewidth=3.2, zorder=3)
    axes.plot([value.value], [row], "o", color=tint, mec=svg.SURFACE, markersize=8, zorder=4)
    if floor is not None:
        axes.plot([floor] * 2, [row - 0.36, row + 0.36], color=svg.FLOOR, linewidth=1.5, zorder=2)
        place = ((floor, row - 0.38), (0, 1))
        axes.annotate(f"asked {floor:g}", *place, textcoords="offset points", ha="center", va="bottom")


def table(comparisons: Sequence[Comparison]) -> Table:
    rows = [
        [
            c.cell.role_name,
            ratio(c.speedup.value or math.nan),
            span(c.speedup) or NONE,
            str(len(c.log_ratios)),
            " ".join(f"{math.exp(d):.2f}" for d in c.log_ratios),
        ]
        for c in comparisons
    ]
    return Table(("role", "speed-up", "95 % interval", "pairs", "each pair, in running order"), rows)

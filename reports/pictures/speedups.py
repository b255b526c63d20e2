"""Picture of the speed-up of every pair of blocks, and of their means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specgate.contract import Comparison, Role
from specgate.reports.common.figures import NONE, ratio, span
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg


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

"""Picture of every speed-up of a run, with what the policy asks of it (a forest plot)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.intervals.rounding import told_from
from specgate.contract import Comparison, Role, Run
from specgate.reports.common.figures import NONE, floor_of, percent, ratio, reason
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

SHOWN: Final = 60
"""Most rows that are drawn. The table has all of them."""
NAME: Final = "Speed-up of every cell, and what is asked"


@dataclass(frozen=True, slots=True)
class Row:
    """A ratio of speeds with its 95 % interval, the least ratio that the policy asks for (`asked`), and the machine's
    minimum detectable effect (`mde`).
    """

    name: str
    role: Role
    value: float | None
    low: float | None
    high: float | None
    asked: float | None
    mde: float | None
    why_none: str | None = None

    @property
    def room(self) -> float:
        """The lower end of the interval divided by what is asked, or by 1 if nothing is. Below 1, it is not proven."""
        least = self.low if self.low is not None else self.value
        return (least or 0.0) / (self.asked or 1.0)


def forest(run: Run) -> Picture:
    rows = [row_of(run, comparison) for comparison in run.comparisons]
    drawable = [r for r in rows if r.value is not None]
    if not drawable:
        return left_out(NAME, "no pair of blocks whose speed may be quoted")
    if len(drawable) > SHOWN:
        kept = set(sorted(range(len(drawable)), key=lambda i: drawable[i].room)[:SHOWN])
        shown = [r for i, r in enumerate(drawable) if i in kept]
    else:
        shown = drawable
    caption = "Dot: mean over pairs; line: 95 % interval; dashed: break-even; red: the least that the policy asks"
    caption += "; grey band: effects too small for this machine to tell." if any(r.mde for r in shown) else "."
    if len(shown) < len(drawable):
        caption += f" Drawn are the {len(shown)} of {len(drawable)} with the least room; the table has all."
    named = shown[:12]
    words = "; ".join(f"{r.name}: {ratio(r.value or 0)}" for r in named)
    words += f"; and {len(rows) - len(named)} more in the table" if len(rows) > len(named) else ""
    height = 0.75 + 0.27 * max(2, len(shown))
    rates = any(c.cell.point.rate is not None for c in run.comparisons)
    what = "baseline's mean E2E latency over spec's" if rates else "ratio of tokens per second"
    drawing = svg.fitted("forest", f"{NAME}. {words}.", lambda axes: draw(axes, shown, what), svg.WIDE, height)
    return Picture(NAME, caption, drawing, [table(rows)], wide=True)


def row_of(run: Run, comparison: Comparison) -> Row:
    cell, value = comparison.cell, comparison.speedup
    floor, mde = floor_of(run, cell), smallest_effect(run, cell.key)
    return Row(
        cell_name(cell.key, run.scenarios),
        cell.role,
        value.value,
        value.ci_low,
        value.ci_high,
        floor,
        mde,
        reason(value),
    )


def smallest_effect(run: Run, cell: str) -> float | None:
    """The machine's minimum detectable effect; None if it is not known, or beyond a factor of 2, which helps nobody."""
    mde = run.mde.get(cell)
    return mde if mde is None or mde <= 1 else None


def draw(axes: Any, rows: Sequence[Row], what: str) -> None:
    for at, row in enumerate(rows):
        tint = svg.colour(row.role)
        if row.mde:
            left, right = 1 / (1 + row.mde), 1 + row.mde
            axes.fill_betweenx([at - 0.4, at + 0.4], left, right, color=svg.BAND, alpha=0.25, linewidth=0, zorder=1)
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at, at], color=tint, linewidth=3, zorder=3)
        axes.plot([row.value], [at], "o", color=tint, mec=svg.SURFACE, markersize=7, zorder=4)
        if row.asked is not None:
            axes.plot([row.asked] * 2, [at - 0.36, at + 0.36], color=svg.FLOOR, linewidth=2, zorder=2)
    axes.axvline(1, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
    axes.set(xlabel=what, ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.grid(axis="x", color=svg.GRID, linewidth=0.7)
    axes.margins(x=0.05)
    svg.ratio_axis(axes)


def table(rows: Sequence[Row]) -> Table:
    def entries(row: Row) -> list[str]:
        value, *ends = (
            None if of is None else told_from(row.asked or 1.0, of, 3) for of in (row.value, row.low, row.high)
        )
        span = NONE if None in ends else " … ".join(filter(None, ends))
        return [
            row.name,
            value or row.why_none or NONE,
            span,
            f"{row.asked:g}" if row.asked else NONE,
            percent(row.mde),
        ]

    head = ("cell", "ratio", "95 % interval", "asked", "smallest effect")
    return Table(head, [entries(row) for row in rows])

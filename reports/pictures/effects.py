"""Picture of changes from A to B: an effect and its interval per row, with the margin within which it counts as the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

Side = Literal["better", "worse", "same", "open"]
SHOWN: Final = 24
"""Most rows that are drawn. The table has all of them."""
WIDTH: Final = 9.0
"""Inches."""
MARKERS: Final = {"better": "^", "worse": "v", "same": "s", "open": "o"}
"""Side → marker, so that a row is understood without its colour."""
LEAST: Final = 0.01
"""The axis reaches at least so far beyond no change, lest noise of a thousandth fill the picture."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Change of a figure from A to B, turned so that above 1 is better.

    `low`, `high`: the 95 % interval, if there is one.
    `margin`: the relative loss that counts as none, for example 0.02; None where nothing is asked.
    `said`: the change in words, written beside the row.
    """

    name: str
    ratio: float
    low: float | None
    high: float | None
    margin: float | None
    said: str

    @property
    def side(self) -> Side:
        """Side of the margin that the interval lies on; `same` within it either way, `open` without an interval too."""
        if self.low is None or self.high is None:
            return "open"
        if self.margin is not None and 1 / (1 + self.margin) <= self.low and self.high <= 1 + self.margin:
            return "same"
        return "better" if self.low > 1 else "worse" if self.high < 1 else "open"


def effects(key: str, name: str, rows: Sequence[Effect], tables: Sequence[Table] = ()) -> Picture:
    """The picture of `rows`, drawn in their order. `key`: what the ids of its elements begin with."""
    if not rows:
        return left_out(name, "no figure changed that both sides have")
    entries = rows[:SHOWN]
    caption = "B against A, turned so that the right is better: a time that grew stands on the left. "
    caption += "▲ better, ▼ worse, ■ the same within the margin, ● open. Line: 95 % interval; dashed: no change" + (
        "; grey: the margin." if any(r.margin for r in entries) else "."
    )
    if len(entries) < len(rows):
        caption += f" Drawn are the first {len(entries)} of {len(rows)}; the table has all."
    words = "; ".join(f"{r.name}: {r.said}, {r.side}" for r in entries)
    height = 0.62 + 0.3 * max(2, len(entries))
    drawing = svg.fitted(key, f"{name}. {words}.", lambda axes: draw(axes, entries), WIDTH, height)
    return Picture(name, caption, drawing, tables, wide=True)


def draw(axes: Any, rows: Sequence[Effect]) -> None:
    tints = {"better": svg.GAIN, "worse": svg.FLOOR, "same": svg.INK, "open": svg.MUTED}
    for at, row in enumerate(rows):
        if row.margin:
            edges = 1 / (1 + row.margin), 1 + row.margin
            axes.fill_betweenx([at - 0.38, at + 0.38], *edges, color=svg.BAND, alpha=0.22, linewidth=0, zorder=1)
        tint = tints[row.side]
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [at, at], color=tint, linewidth=3, zorder=3)
        axes.plot([row.ratio], [at], MARKERS[row.side], color=tint, mec=svg.SURFACE, markersize=8, zorder=4)
    axes.axvline(1, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=2)
    limits = (len(rows) - 0.4, -0.6)
    axes.set(ylim=limits, xlabel="worse ← → better")
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.grid(axis="x", color=svg.GRID, linewidth=0.7)
    axes.set_xscale("log")
    reach(axes, rows)
    beside = axes.twinx()
    beside.set_ylim(limits)
    beside.set_yticks(range(len(rows)), [row.said for row in rows])
    beside.tick_params(length=0)
    beside.spines["right"].set_visible(False)


def reach(axes: Any, rows: Sequence[Effect]) -> None:
    """Limits and ticks of the axis, in percent, with no change always among them."""
    from matplotlib.ticker import MaxNLocator

    ends = [x for r in rows for x in (r.low or r.ratio, r.ratio, r.high or r.ratio)]
    widest = [e for r in rows if r.margin for e in (1 / (1 + r.margin), 1 + r.margin)]
    low, high = min(*ends, *widest, 1 - LEAST), max(*ends, *widest, 1 + LEAST)
    room = (high / low) ** 0.06
    axes.set_xlim(low / room, high * room)
    ticks = MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(100 * (low - 1), 100 * (high - 1))
    kept = [float(t) for t in ticks if low / room < 1 + t / 100 < high * room]
    axes.set_xticks([1 + t / 100 for t in kept], [f"{t:+g} %" if t else "0" for t in kept])
    axes.set_xticks([], minor=True)

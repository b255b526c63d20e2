"""Draw a figure over the runs of one group as inline SVG, a line per role, small enough to stand beside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specgate.contract import Value
from specgate.contract.trends import Series
from specgate.reports.common.figures import figure
from specgate.reports.pictures import svg

WIDTH, HEIGHT = 4.2, 2.5
"""Inches. Three of them stand beside each other on a page, and their letters stay readable."""
MARKERS: Final = "osD^vPX*<"
"""Per role, by its draft length, so that a line is told from the others without its colour."""
NAMED: Final = 8
"""Most runs that are numbered on the axis."""
LEAST: Final = 0.02
"""The least height of the vertical axis, relative to the values: noise must not look like a landscape."""


def trend(key: str, title: str, group: Sequence[Series], places: Sequence[int]) -> str:
    """The SVG of the values of `found` with intervals and change points. `key`: what its ids begin with.

    `places`: indices of the runs that the axis has, in order. They stand at equal distances, numbered from 1.
    """
    at = {place: x for x, place in enumerate(places)}

    def draw(axes: Any) -> None:
        svg.rows_of_grid(axes)
        for series in group:
            draw_series(axes, series, [at[r.run] for r in series.readings])
        step = -(-len(places) // NAMED)
        named = [*range(len(places) - 1, -1, -step)][::-1]
        axes.set_xticks(named, [str(places[x] + 1) for x in named])
        axes.set(xlabel="run", xlim=(-0.5, len(places) - 0.5), ylim=limits(group))
        svg.few_ticks(axes.yaxis)
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        svg.legend(axes, len(group))

    words = "; ".join(described(s) for s in group)
    return svg.fitted(key, f"{title}. {words}.", draw, WIDTH, HEIGHT)


def draw_series(axes: Any, series: Series, xs: Sequence[int]) -> None:
    tint, marker = svg.colour(series.cell.role), MARKERS[series.cell.role.k % len(MARKERS)]
    for x, r in zip(xs, series.readings, strict=True):
        if r.ci_low is not None and r.ci_high is not None:
            axes.plot([x, x], [r.ci_low, r.ci_high], color=tint, linewidth=3, alpha=0.35)
    axes.plot(xs, [r.value for r in series.readings], f"{marker}-", color=tint, label=series.cell.role_name)
    ends = [*(c.at for c in series.changes or ()), len(xs)]
    for change, end in zip(series.changes or (), ends[1:], strict=False):
        edge = (xs[change.at - 1] + xs[change.at]) / 2
        axes.axvline(edge, color=svg.INK, linewidth=1.2, linestyle=(0, (2, 2)))
        axes.plot([edge, xs[end - 1]], [change.after] * 2, color=svg.INK, linewidth=1)


def limits(group: Sequence[Series]) -> tuple[float, float]:
    """The vertical range: all values and intervals, and at least LEAST of the largest value."""
    ends = [x for s in group for r in s.readings for x in (r.value, r.ci_low, r.ci_high) if x is not None]
    low, high = min(ends), max(ends)
    room = max((high - low) * 0.12, (abs(high) * LEAST - (high - low)) / 2, 1e-9)
    return low - room, high + room


def described(series: Series) -> str:
    values = ", ".join(figure(Value(series.metric, r.value)) for r in series.readings)
    changed = [str(series.readings[c.at].run + 1) for c in series.changes or ()]
    return f"{series.cell.role_name}: {values}" + (f", changed at run {', '.join(changed)}" if changed else "")

"""Picture of the pairs of a point over time, above what the machine did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from specgate.contract import Comparison
from specgate.contract.conditions import Timeline
from specgate.reports.common.figures import NONE, number, percent
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

STRIPS: Final = {
    "sm_clock_mhz": "SM clock, MHz",
    "temperature_c": "GPU temperature, °C",
    "power_w": "GPU power, W",
    "other_cpu_share": "CPU of others",
    "slow_cpu_share": "slow CPU samples",
}
"""Column of a timeline → label of its strip. A strip is not drawn if nothing of it could be read."""
SHARES: Final = ("other_cpu_share", "slow_cpu_share")
"""Columns that are shown in percent."""


def over_time(key: str, timeline: Timeline, comparisons: Sequence[Comparison]) -> Picture:
    """`comparisons`: the comparisons of the point whose speed may be quoted."""
    name = "Pairs in time, and the machine"
    if not timeline.at_s or not timeline.rounds:
        return left_out(name, "the run keeps no samples of the machine around these blocks")
    strips = {field: label for field, label in STRIPS.items() if any(v is not None for v in column(timeline, field))}
    spans = {turn: (begin, end) for turn, begin, end in timeline.rounds}

    def draw(panels: Sequence[Any]) -> None:
        if comparisons:
            draw_pairs(panels[0], comparisons, spans)
        for axes, (field, label) in zip(panels[bool(comparisons) :], strips.items(), strict=True):
            draw_strip(axes, timeline, field, label)
        for axes in panels:
            svg.rows_of_grid(axes)
            seconds = [(begin, end - begin) for turn, (begin, end) in spans.items() if turn % 2]
            whole = axes.get_xaxis_transform()
            axes.broken_barh(seconds, (0, 1), transform=whole, color=svg.GRID, alpha=0.35, linewidth=0, zorder=0)
            axes.set_xlim(min(begin for begin, _ in spans.values()), max(end for _, end in spans.values()))
        panels[-1].set_xlabel("seconds from the first measured block")

    shares = ([2.2] if comparisons else []) + [1.0] * len(strips)
    words = "; ".join(sentence for field in strips if (sentence := _words(timeline, field)))
    described = f"{name}. {len(spans)} rounds in {max(end for _, end in spans.values()):.0f} seconds; {words}."
    caption = "Shaded: every second round. " + ("Above: speed-up of each pair while it ran. " if comparisons else "")
    caption += "Strips show the worst of each stretch: the lowest clock, the highest of everything else."
    caption += " Of slow CPU samples they show the share." if "slow_cpu_share" in strips else ""
    missing = [label for field, label in kept(timeline).items() if field not in strips]
    caption += f" Nothing was read of {'; '.join(missing)}." if missing else ""
    drawing = svg.stacked(f"{key}-machine", described, draw, shares, 0.9 + 0.66 * sum(shares))
    return Picture(name, caption, drawing, [pair_table(timeline, comparisons), sample_table(timeline)])


def draw_pairs(axes: Any, comparisons: Sequence[Comparison], spans: dict[int, tuple[float, float]]) -> None:
    for comparison in comparisons:
        tint = svg.colour(comparison.cell.role)
        ratios = zip(comparison.turns, map(math.exp, comparison.log_ratios), strict=True)
        timed = [(ratio, *spans[turn]) for turn, ratio in ratios if turn in spans]
        if timed:
            axes.hlines(*zip(*timed, strict=True), color=tint, linewidth=3, label=comparison.cell.role_name)
    axes.set_ylabel("speed-up")
    axes.margins(y=0.15)
    svg.ratio_axis(axes, "y")
    svg.legend(axes, max(2, len(comparisons)))


def draw_strip(axes: Any, timeline: Timeline, field: str, label: str) -> None:
    points = [(at, v) for at, v in zip(timeline.at_s, column(timeline, field), strict=True) if v is not None]
    x, y = [at for at, _ in points], [value for _, value in points]
    axes.plot(x, y, color=svg.INK, linewidth=1.1, drawstyle="steps-post")
    axes.annotate(label, (0, 1), (2, 2), "axes fraction", "offset points", fontsize=7.5)
    room = 0.15 * (max(y) - min(y)) or 0.05 * max(abs(max(y)), 0.2)
    axes.set_ylim(min(y) - room, max(y) + room)
    if field in SHARES:
        axes.set_ylim(0, max(1.15 * max(y), 0.1))
        svg.percents(axes)
    svg.few_ticks(axes.yaxis, 2)


def kept(timeline: Timeline) -> dict[str, str]:
    """The strips whose columns the timeline has. Results before 1.18.0, and short points, have no slow CPU samples."""
    return {field: label for field, label in STRIPS.items() if column(timeline, field)}


def column(timeline: Timeline, field: str) -> Sequence[float | None]:
    values: Sequence[float | None] = getattr(timeline, field)
    return values


def pair_table(timeline: Timeline, comparisons: Sequence[Comparison]) -> Table:
    of = [dict(zip(c.turns, c.log_ratios, strict=True)) for c in comparisons]
    rows = [
        [str(turn), f"{begin:.1f}", f"{end:.1f}", *(f"{math.exp(d[turn]):.3f}" if turn in d else NONE for d in of)]
        for turn, begin, end in timeline.rounds
    ]
    return Table(("round", "begins at s", "ends at s", *(f"{c.cell.role_name} speed-up" for c in comparisons)), rows)


def sample_table(timeline: Timeline) -> Table:
    def text(field: str, value: float | None) -> str:
        if value is None:
            return NONE
        return percent(value) if field in SHARES else number(value)

    columns = [[text(field, value) for value in column(timeline, field)] for field in kept(timeline)]
    rows = [[f"{at:.1f}", *row] for at, *row in zip(timeline.at_s, *columns, strict=True)]
    return Table(("at s", *kept(timeline).values()), rows)


def _words(timeline: Timeline, field: str) -> str:
    known = [value for value in column(timeline, field) if value is not None]
    low, high = (percent(v) if field in SHARES else number(v) for v in (min(known), max(known)))
    return f"{STRIPS[field]} {low} to {high}"

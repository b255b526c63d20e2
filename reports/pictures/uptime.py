"""Picture of the acceptance length of every block over the requests that the engine had answered."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from specgate.analysis.intervals.decision import FALSE_FAIL
from specgate.analysis.speculation.uptime import fall_pct, in_words
from specgate.contract import AcceptanceDrift, CellResult
from specgate.reports.common.figures import number
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

ERRORS = (FALSE_FAIL, FALSE_FAIL)
"""Of the two sides of the interval that is shown."""


def over_requests(key: str, results: Sequence[CellResult]) -> Picture:
    """Draw the acceptance length of each block less the mean of its prompt set, over requests, with the slope."""
    name = "Acceptance over uptime"
    drifts = [(r, r.drift) for r in results if r.drift is not None]
    if not drifts:
        return left_out(name, "too few blocks of an engine that keeps running")
    words = "; ".join(f"{result.cell.role_name}: {in_words(drift, ERRORS)}" for result, drift in drifts)
    if not any(drift.error or drift.set_error for _, drift in drifts):
        return left_out(name, words)  # a slope of rounding errors, and dots on a line

    def draw(axes: Any) -> None:
        axes.axhline(0, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        for result, drift in drifts:
            draw_role(axes, result, drift)
        axes.set(xlabel="requests answered before", ylabel="tokens per cycle, less the mean")
        axes.margins(y=0.15)
        svg.rows_of_grid(axes)
        svg.whole_ticks(axes)
        svg.legend(axes, len(drifts))

    caption = f"A dot per block: its acceptance length less the mean of its prompt set; line: the slope. {words}."
    drawing = svg.drawn(f"{key}-uptime", f"{name}. {words}.", draw)
    return Picture(name, caption, drawing, [table(drifts)])


def draw_role(axes: Any, result: CellResult, drift: AcceptanceDrift) -> None:
    tint, xs = svg.colour(result.cell.role), [x for x, _ in drift.blocks]
    axes.plot(xs, [y for _, y in drift.blocks], "o", color=tint, alpha=0.6, label=result.cell.role_name)
    ends, middle = (min(xs), max(xs)), statistics.fmean(xs)
    axes.plot(ends, [drift.slope * (x - middle) / 1000 for x in ends], color=tint)


def table(drifts: Sequence[tuple[CellResult, AcceptanceDrift]]) -> Table:
    rows = []
    for result, drift in drifts:
        least, greatest = fall_pct(drift, FALSE_FAIL)
        rows.append(
            [
                result.cell.role_name,
                f"{drift.length:.3f}",
                f"{drift.slope:+.3g}",
                f"{number(least, 2)} … {number(greatest, 2)}",
                f"{drift.requests:,}",
                str(len(drift.blocks)),
            ]
        )
    head = ("role", "acceptance length", "tokens per 1,000 requests", "fall, % (99.3 % interval)", "requests", "blocks")
    return Table(head, rows)

"""Draw a figure over many runs as inline SVG, a line per role, in the style of the pictures of report.html."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgate.core import Value
from specgate.core.metrics import metric
from specgate.core.trends import Series
from specgate.reports.common.figures import figure
from specgate.reports.pictures import svg


def trend(key: str, title: str, found: Sequence[Series]) -> str:
    """The SVG of the values of `found` over the number of the run, with intervals. `key`: what its ids begin with."""

    def draw(axes: Any) -> None:
        svg.rows_of_grid(axes)
        for series in found:
            tint = svg.colour(series.cell.role)
            at, values = [r.run + 1 for r in series.readings], [r.value for r in series.readings]
            axes.plot(at, values, "o-", color=tint, label=series.cell.role.name)
            for r in series.readings:
                if r.ci_low is not None and r.ci_high is not None:
                    axes.plot([r.run + 1] * 2, [r.ci_low, r.ci_high], color=tint, linewidth=3, alpha=0.35)
        axes.set(xlabel="run, oldest first", ylabel=metric(found[0].metric).unit)
        axes.margins(x=0.08, y=0.15)
        svg.whole_ticks(axes)
        svg.legend(axes, len(found))

    words = "; ".join(
        f"{s.cell.role}: " + ", ".join(figure(Value(s.metric, r.value)) for r in s.readings) for s in found
    )
    return svg.drawn(key, f"{title}. {words}.", draw)

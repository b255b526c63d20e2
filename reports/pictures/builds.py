"""Picture of two builds: every quantity with its interval, beside the margin within which the two are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from specgate.contract.two_builds import NAMES, TELLING_PCT, Quantity, Word
from specgate.reports.pictures import svg

TINTS: Final = {Word.SLOWER: svg.FLOOR, Word.FASTER: svg.GAIN, Word.SAME: svg.GAIN, Word.CANNOT_TELL: svg.MUTED}


def losses(quantities: Sequence[Quantity]) -> str | None:
    """The picture of the quantities that decide and have an interval that tells something; None where none has.

    Start-up times scatter so much more that the others could not be seen beside them.
    """
    drawn_quantities = [q for q in quantities if q.decides and q.within_pct is not None and q.within_pct <= TELLING_PCT]
    if not drawn_quantities:
        return None
    words = "; ".join(f"{name_of(q)}: {q.word}" for q in drawn_quantities)
    height = 0.8 + 0.3 * max(2, len(drawn_quantities))
    return svg.fitted(
        "builds", f"New build against old. {words}.", lambda axes: draw(axes, drawn_quantities), svg.WIDE, height
    )


def name_of(quantity: Quantity) -> str:
    """A quantity in words, with its cell."""
    return f"{NAMES[quantity.name]} {quantity.cell}".strip()


def short_names(quantities: Sequence[Quantity]) -> list[str]:
    """The quantities in words. The scenario is left out where all have the same one."""
    scenarios = {q.cell.partition("/")[0] for q in quantities if q.cell}
    if len(scenarios) > 1:
        return [name_of(q) for q in quantities]
    return [f"{NAMES[q.name]} {q.cell.partition('/')[2].replace('/', ' ')}".strip() for q in quantities]


def loss_pct(quantity: Quantity, ratio: float) -> float:
    """Return the loss of a ratio new / old, in percent of the logarithm; negative if it is a gain."""
    return 100 * math.log(ratio) * (1 if quantity.better == "lower" else -1)


def draw(axes: Any, rows: Sequence[Quantity]) -> None:
    """Dots with intervals on a scale of percent. To the right is worse. The band is the margin."""
    for at, row in enumerate(rows):
        assert row.ratio is not None and row.low is not None and row.high is not None
        margin = 100 * math.log1p(row.margin_pct / 100)
        tint = TINTS[row.word]
        axes.fill_betweenx([at - 0.4, at + 0.4], -margin, margin, color=svg.BAND, alpha=0.25, linewidth=0, zorder=1)
        axes.plot([loss_pct(row, row.low), loss_pct(row, row.high)], [at, at], color=tint, linewidth=3, zorder=3)
        axes.plot([loss_pct(row, row.ratio)], [at], "o", color=tint, mec=svg.SURFACE, markersize=7, zorder=4)
        axes.annotate(row.word.value, (1.01, at), xycoords=("axes fraction", "data"), va="center", color=tint)
    axes.axvline(0, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
    axes.set(xlabel="new against old, %   (right: worse)", ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), short_names(rows))
    axes.grid(axis="x", color=svg.GRID, linewidth=0.7)
    axes.margins(x=0.08)

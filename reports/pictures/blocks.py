"""Picture of every block of a point in running order. It shows drift, too short a warm-up, and single outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from specgate.contract import CellResult
from specgate.reports.common.figures import NONE
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg


def in_order(key: str, results: Sequence[CellResult]) -> Picture:
    """The milliseconds per token of every block. A line links the blocks of one round."""
    name = "Blocks in running order"
    if not results:
        return left_out(name, "no block whose speed may be quoted")

    def draw(axes: Any) -> None:
        rounds: dict[int, list[tuple[float, float]]] = {}
        for result in results:
            roles = len(results)
            spots = [(pair + (slot - (roles - 1) / 2) * 0.5 / roles, ms) for pair, slot, ms in result.series_ms]
            for (pair, *_), spot in zip(result.series_ms, spots, strict=True):
                rounds.setdefault(pair, []).append(spot)
            at, ms = [x for x, _ in spots], [y for _, y in spots]
            axes.plot(at, ms, "o", color=svg.colour(result.cell.role), label=result.cell.role_name, zorder=3)
        # All links are drawn as one line with a gap after every round.
        links = [spot for linked in rounds.values() for spot in (*sorted(linked), (math.nan, math.nan))]
        axes.plot(*zip(*links, strict=True), color=svg.MUTED, alpha=0.45, linewidth=1, zorder=1)
        axes.set(xlabel="round, in running order", ylabel="ms per token", ylim=(0, None))
        svg.rows_of_grid(axes)
        svg.whole_ticks(axes)
        svg.legend(axes, max(2, len(results)))

    times = {r.cell.role: [ms for *_, ms in r.series_ms] for r in results}
    words = "; ".join(f"{role}: {min(ms):.1f} to {max(ms):.1f} ms per token" for role, ms in times.items())
    drawing = svg.drawn(f"{key}-series", f"Time per token of every block. {words}.", draw)
    caption = "Milliseconds per token of one request. A grey line links the blocks of one round."
    return Picture(name, caption, drawing, [table(results)])


def table(results: Sequence[CellResult]) -> Table:
    rounds = sorted({pair for r in results for pair, *_ in r.series_ms})
    by_role = [{pair: ms for pair, _, ms in r.series_ms} for r in results]
    rows = [[str(i), *(f"{of[i]:.2f}" if i in of else NONE for of in by_role)] for i in rounds]
    return Table(("round", *(f"{r.cell.role_name} ms/token" for r in results)), rows)

"""Pictures of how the times of single requests are distributed (empirical distribution functions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specgate.contract import CellResult, Distribution
from specgate.reports.common.figures import number
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

NAMES: Final = {
    "tpot_ms": "Time per output token, request by request",
    "ttft_ms": "Time to the first token",
    "itl_ms": "Time between output tokens",
}
QUANTILES: Final = (0, 10, 50, 90, 99, 100)


def ecdf(key: str, metric: str, results: Sequence[CellResult]) -> Picture:
    """The distribution of `metric`, a key of `NAMES`. `results`: cells whose times may be quoted."""
    name, what = NAMES[metric], "gaps" if metric == "itl_ms" else "requests"
    spreads = [(r, r.distributions[metric]) for r in results if metric in r.distributions]
    if not spreads:
        return left_out(name, "no request whose time may be quoted")

    def draw(axes: Any) -> None:
        for result, spread in spreads:
            shares = [i / max(1, len(spread.values) - 1) for i in range(len(spread.values))]
            role = result.cell.role
            axes.step(spread.values, shares, where="post", color=svg.colour(role), label=role.name)
        axes.set(xlabel="ms", ylabel=f"{what} at or below", ylim=(0, 1.02))
        axes.margins(x=0.05)
        svg.rows_of_grid(axes)
        svg.percents(axes)
        svg.legend(axes, len(spreads))

    words = "; ".join(
        f"{r.cell.role_name}: {number(percentile(r, metric, 50))} ms at the median, {number(d.values[-1])} ms at most"
        for r, d in spreads
    )
    rows = [
        [r.cell.role_name, *(number(percentile(r, metric, percent)) for percent in QUANTILES), f"{d.n:,}"]
        for r, d in spreads
    ]
    head = ("role", "least", *(f"p{q}" for q in QUANTILES[1:-1]), "most", what)
    caption = f"Share of the {what} that took at most so long; a step to the right is a slow {what[:-1]}."
    drawing = svg.drawn(f"{key}-{metric.removesuffix('_ms')}", f"{name}. {words}.", draw)
    return Picture(name, caption, drawing, [Table(head, rows)])


def percentile(result: CellResult, metric: str, percent: int) -> float:
    """The percentile that the run has, else the one of the order statistics that were kept."""
    stored = result.values.get(f"p{percent}_{metric}")
    if stored is not None and stored.value is not None:
        return stored.value
    return quantile(result.distributions[metric], percent)


def quantile(spread: Distribution, percent: int) -> float:
    """The quantile, taken as the nearest of the sorted values that were kept."""
    return spread.values[round(percent / 100 * (len(spread.values) - 1))]

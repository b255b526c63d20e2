"""Latencies of a run's requests as a user of the server feels them: one row per point and role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.contract import CellResult, Distribution, Run
from specgate.contract.metrics import per_request
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table, dense

SHOWN: Final = 6
"""Most points."""
QUANTITIES: Final = ("ttft", "tpot", "itl")


def table(run: Run, points: Sequence[str]) -> Table:
    """Return p50, p95 and p99 of TTFT, TPOT and ITL, throughput and request errors of the cells at `points` (keys), the
    baseline before its roles with speculation. No rows of a run whose requests nobody sent.

    Columns that no cell fills are left out.
    """
    several = len(points) > 1
    head = (*(("at",) if several else ()), "role", *(f"{q.upper()}, ms\np50 / p95 / p99" for q in QUANTITIES))
    rows: list[list[str | Entry]] = []
    for key in points[:SHOWN] if served(run) else ():
        for result in (r for r in run.cells if r.cell.point.key == key):
            named = [cell_name(key, run.scenarios)] if several else []
            percentiles = [percentiles_of(result, quantity) for quantity in QUANTITIES]
            rows.append(
                [*named, result.cell.role_name, *percentiles, figures.of(result, *figures.SPEED), errors(result)]
            )
    return dense(Table((*head, "output tok/s", "request errors"), rows, texts=1 + several))


def served(run: Run) -> bool:
    """Return whether requests were sent to somebody else's engine, or whole requests were timed."""
    return run.kind != "micro" or any(engine.identity for engine in run.engines.values())


def percentiles_of(result: CellResult, quantity: str) -> str:
    """Return `12.3 / 14.1 / 20.2`, or a dash if the times of the cell may not be quoted."""
    spread = result.distributions.get(f"{quantity}_ms")
    middle, last = (result.values.get(per_request(p, quantity)) for p in ("p50", "p99"))
    if spread is None or middle is None or middle.value is None or last is None:
        return figures.NONE
    return f"{figures.figure(middle)} / {figures.number(between_ranks(spread, 0.95))} / {figures.figure(last)}"


def between_ranks(spread: Distribution, share: float) -> float:
    """Return the quantile, interpolated between the stored order statistics."""
    at = share * (len(spread.values) - 1)
    low = spread.values[int(at)]
    return low + (at - int(at)) * (spread.values[min(int(at) + 1, len(spread.values) - 1)] - low)


def errors(result: CellResult) -> str:
    """Return the requests that were refused or asked again, and `cut short` for a cell that an error ended."""
    counts = {"refused": "refused_requests", "asked again": "asked_again"}
    known = {word: result.values.get(name) for word, name in counts.items()}
    parts = [f"{value.value:.0f} {word}" for word, value in known.items() if value is not None and value.value]
    return ", ".join(([] if result.status == "ok" else ["cut short"]) + parts) or "0"

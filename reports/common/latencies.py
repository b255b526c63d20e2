"""Latencies of a run's requests as a user of the server feels them: one row per point and role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.contract import CellResult, Run
from specgate.contract.metrics import PERCENTILES, per_request
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table, dense

SHOWN: Final = 6
"""Most points."""
QUANTITIES: Final = ("ttft", "tpot", "itl")
PERCENTS: Final = " / ".join(f"p{percent}" for percent in PERCENTILES)


def table(run: Run, points: Sequence[str]) -> Table:
    """Return percentiles of TTFT, TPOT and ITL, throughput and request errors of the cells at `points` (keys), the
    baseline before its roles with speculation. No rows of a run whose requests nobody sent.

    Columns that no cell fills are left out.
    """
    several = len(points) > 1
    head = (*(("at",) if several else ()), "role", *(f"{q.upper()}, ms\n{PERCENTS}" for q in QUANTITIES))
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
    """Return `12.3 / 13.0 / 14.1 / 20.2`, or a dash if the times of the cell may not be quoted."""
    values = [result.values.get(per_request(f"p{percent}", quantity)) for percent in PERCENTILES]
    if any(value is None or value.value is None for value in values):
        return figures.NONE
    return " / ".join(map(figures.figure, values))


def errors(result: CellResult) -> str:
    """Return the requests that were refused or asked again, and `cut short` for a cell that an error ended."""
    counts = {"refused": "refused_requests", "asked again": "asked_again"}
    known = {word: result.values.get(name) for word, name in counts.items()}
    parts = [f"{value.value:.0f} {word}" for word, value in known.items() if value is not None and value.value]
    return ", ".join(([] if result.status == "ok" else ["cut short"]) + parts) or "0"

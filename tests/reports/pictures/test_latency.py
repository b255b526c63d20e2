"""The distributions of the requests' times: which there are, and which percentiles their tables state."""

from __future__ import annotations

from specgate.contract import CellResult, Scenario
from specgate.reports.common.figures import number
from specgate.reports.pictures.latency import ecdf
from tests.support.factories import blocks_of, plan_of, run_of, scenario

DRAWS = True


def cells(of: Scenario) -> list[CellResult]:
    plan = plan_of(of)
    return list(run_of(plan, blocks_of(plan, jitter=0.2)).cells)


def test_the_table_states_the_percentiles_that_the_run_has() -> None:
    results = cells(scenario())
    (table,) = ecdf("p", "itl_ms", results).tables
    assert table.head[-1] == "gaps"
    for row, result in zip(table.rows, results, strict=True):
        stated = dict(zip(table.head, row, strict=True))
        assert [stated[p] for p in ("p50", "p90", "p99")] == [
            number(result.values[f"{p}_itl_ms"].value or 0.0) for p in ("p50", "p90", "p99")
        ]

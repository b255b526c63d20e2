"""Latencies of a run's requests: p50, p95 and p99 beside throughput and errors."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract import Distribution, Value
from specgate.reports.common.latencies import between_ranks, errors, table
from tests.support.factories import blocks_of, plan_of, run_of, scenario

PLAN = plan_of(scenario(kind="full"))
RUN = run_of(PLAN, blocks_of(PLAN), kind="full")
POINT = PLAN.points[0].key


def test_requests_that_were_timed_whole_have_a_row_per_role() -> None:
    shown = table(RUN, [POINT])
    assert [row[0] for row in shown.rows] == ["baseline", "spec-3"]
    assert "TPOT, ms\np50 / p95 / p99" in shown.head and shown.head[-1] == "request errors"
    micro = plan_of(scenario())
    assert not table(run_of(micro, blocks_of(micro)), [micro.points[0].key]).rows


def test_a_quantile_lies_between_the_stored_order_statistics() -> None:
    spread = Distribution(5, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert [between_ranks(spread, share) for share in (0.0, 0.5, 0.875, 1.0)] == [1.0, 3.0, 4.5, 5.0]


def test_refused_requests_and_cut_cells_are_errors() -> None:
    cell = RUN.cells[0]
    assert errors(cell) == "0"
    refused = replace(cell, values={"refused_requests": Value("refused_requests", 3.0)}, status="partial")
    assert errors(refused) == "cut short, 3 refused"

"""Latencies of a run's requests: p50, p90, p95 and p99 beside throughput and errors."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract import Value
from specgate.reports.common.latencies import errors, table
from tests.support.factories import blocks_of, plan_of, run_of, scenario

PLAN = plan_of(scenario(kind="full"))
RUN = run_of(PLAN, blocks_of(PLAN), kind="full")
POINT = PLAN.points[0].key


def test_requests_that_were_timed_whole_have_a_row_per_role() -> None:
    shown = table(RUN, [POINT])
    assert [row[0] for row in shown.rows] == ["baseline", "spec-3"]
    assert "TPOT, ms\np50 / p90 / p95 / p99" in shown.head and shown.head[-1] == "request errors"
    micro = plan_of(scenario())
    assert not table(run_of(micro, blocks_of(micro)), [micro.points[0].key]).rows


def test_refused_requests_and_cut_cells_are_errors() -> None:
    cell = RUN.cells[0]
    assert errors(cell) == "0"
    refused = replace(cell, values={"refused_requests": Value("refused_requests", 3.0)}, status="partial")
    assert errors(refused) == "cut short, 3 refused"

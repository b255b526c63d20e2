"""Figures of a level of load, against the definitions and against a second way to count."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from specgate.analysis.load.sweeps import lag_values
from specgate.contract import Block, CellResult, LatencyLimits, Run, Served, ServedRequest
from specgate.planning.plan import build_plan
from tests.support.loaded import SCRIPT, load_scenario, loaded_run, served_blocks


def served_of(block: Block) -> Served:
    assert block.served is not None
    return block.served


def value(result: CellResult, metric: str) -> float:
    results = result.values[metric].value
    assert results is not None
    return results


def cell(run: Run, key: str) -> CellResult:
    result = run.result(f"sweep/fake/c16/{key}")
    assert result is not None
    return result


def test_throughput_counts_from_the_first_sending_to_the_last_token() -> None:
    sweep = load_scenario((4,), rounds=2)
    plan = build_plan([sweep], "fake")
    blocks = [b for b in served_blocks(plan) if not b.warmup and b.role.k == 3]
    took = [max(r.chunk_ns[-1] for r in served_of(b).requests) / 1e9 for b in blocks]
    result_of_cell = cell(loaded_run(sweep), "b4/spec-3")
    assert value(result_of_cell, "output_tok_s") == pytest.approx(statistics.median(8 * 24 / t for t in took))
    assert value(result_of_cell, "throughput_req_s") == pytest.approx(statistics.median(8 / t for t in took))
    assert value(result_of_cell, "output_tok_s_per_user") == pytest.approx(value(result_of_cell, "output_tok_s") / 4)
    assert value(result_of_cell, "refused_requests") == 0 and "decode_tok_s" not in result_of_cell.values


def test_requests_in_flight_are_those_that_a_count_over_time_gives() -> None:
    """Little's law against the integral of the number in flight, step by step."""
    sweep = load_scenario((3,), rounds=2)
    plan = build_plan([sweep], "fake")
    means = []
    for block in (b for b in served_blocks(plan) if not b.warmup and not b.role.k):
        requests = served_of(block).requests
        times = sorted({0, *(r.sent_ns for r in requests), *(r.chunk_ns[-1] for r in requests)})
        area = sum((b - a) * sum(r.sent_ns <= a < r.chunk_ns[-1] for r in requests) for a, b in pairwise(times))
        means.append(area / times[-1])
    assert value(cell(loaded_run(sweep), "b3/baseline"), "in_flight_avg") == pytest.approx(statistics.fmean(means))


def test_refused_requests_are_counted_and_keep_no_limit() -> None:
    limits = LatencyLimits(ttft_ms=1e6)
    whole = loaded_run(load_scenario((8,), rounds=2, goodput=limits))
    refusing = loaded_run(load_scenario((8,), rounds=2, goodput=limits), replace(SCRIPT, refuse_beyond=6))
    assert value(cell(whole, "b8/baseline"), "goodput_share") == 1.0
    result_of_cell = cell(refusing, "b8/baseline")
    refused, sent = value(result_of_cell, "refused_requests"), result_of_cell.values["refused_requests"].n
    assert 0 < refused < sent == 8 * 16
    assert value(result_of_cell, "goodput_share") == pytest.approx(1 - refused / sent)
    assert result_of_cell.status == "ok" and "repeat_mismatches" not in result_of_cell.values, (
        "the block stays; its texts are not compared"
    )


def test_in_an_open_loop_latency_counts_from_when_the_request_was_due() -> None:
    """One slot and requests that come faster than it serves them: each waits for all before it."""
    run = loaded_run(load_scenario((1,), rates=(1000.0,), requests=8, rounds=2))
    result_of_cell = cell(run, "b1/q1000/baseline")
    assert value(result_of_cell, "p99_ttft_ms") > 5 * value(result_of_cell, "p50_tpot_ms") * 24, (
        "seven requests are before the last"
    )
    assert value(result_of_cell, "send_lag_ms") == 0
    plan = build_plan([load_scenario((1,), rates=(1000.0,), requests=8, rounds=2)], "fake")
    block = next(b for b in served_blocks(plan) if not b.warmup)
    for request in served_of(block).requests:
        late = replace(request, sent_ns=request.sent_ns + 5)
        assert (late.ttft_ns, late.e2e_ns) == (request.ttft_ns, request.e2e_ns)


def test_how_late_requests_were_sent_is_shown_as_median_tail_and_maximum() -> None:
    sweep = load_scenario((8,), rates=(50.0,), requests=8, rounds=2)
    result_of_cell = cell(loaded_run(sweep, replace(SCRIPT, send_lag_ns=2_500_000)), "b8/q50/baseline")
    assert {value(result_of_cell, name) for name in ("p50_send_lag_ms", "p99_send_lag_ms", "send_lag_ms")} == {2.5}
    lags = [Served((ServedRequest(i, (200,), (1,), 0),)) for i in range(101)]
    values = {v.metric: v.value for v in lag_values(lags)}
    assert values == {"p50_send_lag_ms": 5e-5, "p99_send_lag_ms": pytest.approx(9.9e-5), "send_lag_ms": 1e-4}
    assert not list(lag_values([Served((ServedRequest(3, (200,), (1,)),))])), "nothing is due in a closed loop"

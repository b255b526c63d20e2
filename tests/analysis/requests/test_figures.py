"""The figures of a cell under the field's definitions."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from specgate.analysis.requests.timing import requests_of
from specgate.contract import Block, CellResult, LatencyLimits, Plan, Role, Round, Run, Served, ServedRequest
from specgate.contract.metrics import METRICS, PER_REQUEST, STATISTICS, per_request
from tests.analysis.checks import test_served as served
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario


def plan(kind: Literal["micro", "full"] = "full", batch: int = 2) -> Plan:
    return plan_of(scenario(kind=kind, batch=(batch,)))


def spec_of(run: Run) -> CellResult:
    return next(c for c in run.cells if c.cell.role.speculative)


def spec_blocks(blocks: list[Block]) -> list[Block]:
    return [b for b in blocks if b.role == Role(3) and not b.warmup]


def test_percentiles_are_over_the_requests_and_the_tokens_of_a_cell() -> None:
    blocks = blocks_of(plan(), jitter=0.2)
    values = spec_of(run_of(plan(), blocks)).values
    requests = [r for b in spec_blocks(blocks) for r in requests_of(b, True)]
    tpots = [r.tpot_ms for r in requests if r.tpot_ms is not None]
    gaps = [ms for r in requests for ms in r.itl_ms]
    assert values["mean_tpot_ms"].value == pytest.approx(statistics.fmean(tpots))
    assert values["mean_tpot_ms"].n == values["p50_ttft_ms"].n == len(requests) == 16
    assert values["p99_itl_ms"].value == pytest.approx(np.percentile(gaps, 99)) and values["p99_itl_ms"].n == len(gaps)
    assert {per_request(s, q) for s in STATISTICS for q in PER_REQUEST} <= values.keys()


def test_few_requests_leave_a_percentile_without_a_bound_and_say_so() -> None:
    values = spec_of(run_of(plan(), blocks_of(plan()))).values
    assert values["p99_tpot_ms"].ci_high is None and values["p99_tpot_ms"].reason_code == "few_samples"


def test_a_micro_run_measures_decoding_alone() -> None:
    values = spec_of(run_of(plan("micro"), blocks_of(plan("micro")))).values
    assert "decode_tok_s" in values and "mean_tpot_ms" in values and "p99_itl_ms" in values
    assert not values.keys() & {"output_tok_s", "mean_ttft_ms", "mean_e2e_ms"}


def test_a_full_run_has_decoding_and_whole_requests_under_two_names() -> None:
    blocks = blocks_of(plan(batch=1), jitter=0)
    run = run_of(plan(batch=1), blocks)
    values, ratios = spec_of(run).values, {r.metric: r.value for r in run.comparisons[0].beside}
    (one, *_) = spec_blocks(blocks)
    tokens = len(one.tokens[0])
    base = next(b for b in blocks if not b.role.speculative and not b.warmup)
    assert values["decode_tok_s"].value == pytest.approx((tokens - 1) / (one.elapsed_ns / 1e9))
    assert values["output_tok_s"].value == pytest.approx(tokens / ((one.elapsed_ns + one.prefill_ns) / 1e9))
    speedup = run.comparisons[0].speedup
    whole = (tokens / (one.prefill_ns + one.elapsed_ns)) / (len(base.tokens[0]) / (base.prefill_ns + base.elapsed_ns))
    assert speedup.metric == "speedup_vs_ar_ratio" and speedup.value == pytest.approx(whole)
    assert ratios["throughput_ratio"] == pytest.approx(whole), "all pairs are alike"
    assert ratios["decode_speedup_ratio"] == pytest.approx((tokens - 1) / 12 * 10 / 14)


def test_a_micro_run_calls_its_speed_up_one_of_decoding() -> None:
    run = run_of(plan("micro"), blocks_of(plan("micro"), jitter=0))
    assert run.comparisons[0].speedup.metric == "decode_speedup_ratio"
    beside = [r.metric for r in run.comparisons[0].beside]
    assert beside[-2:] == ["decode_throughput_ratio", "speedup_like_these_ratio"]


def test_throughput_is_a_ratio_of_sums_where_the_speed_up_is_a_geometric_mean() -> None:
    """One prompt of four has every draft accepted, the others none; cycles take 14 ms, baseline steps 10 ms."""
    small_plan = plan("micro", 1)
    lucky, unlucky = (blocks_of(small_plan, jitter=0, accept=(accepted,)) for accepted in (3, 0))
    mixed = [one if one.prompt_set == 0 else other for one, other in zip(lucky, unlucky, strict=True)]
    compared = run_of(small_plan, mixed).comparisons[0]
    sums, others = compared.beside
    assert compared.speedup.value == pytest.approx(4 ** (1 / 4) * 10 / 14)
    assert sums.value == pytest.approx((4 + 3) / 4 * 10 / 14) and sums.stat == "ratio_of_sums"
    assert others.value == pytest.approx(compared.speedup.value) and others.n == 4


def test_wrong_tokens_withhold_every_time_but_that_of_prefill() -> None:
    run = run_of(plan(), blocks_of(plan(), change=corrupt))
    timed = {name: v for name, v in spec_of(run).values.items() if METRICS.get(name) and METRICS[name].unit == "ms"}
    assert {v.reason_code for n, v in timed.items() if "_ttft_" not in n and n not in ("draft_ms", "verify_ms")} == {
        "token_mismatch"
    }
    assert timed["mean_ttft_ms"].value == pytest.approx(50)
    assert all(ratio.value is None for ratio in run.comparisons[0].beside)


def test_prefix_hits_of_a_cell_are_the_mean_over_the_requests_whose_answers_count_them() -> None:
    small_plan = plan_of(scenario(batch=(2,), steps=10))

    def answered(round_: Round, role: Role) -> Block:
        made = served.block(round_, role)
        assert made.served is not None
        first, second = made.served.requests
        hits = replace(first, prefix_hit_tokens=12 if role.speculative else None), second
        return replace(made, served=replace(made.served, requests=hits))

    baseline, spec = run_of(small_plan, [answered(r, role) for r in small_plan.rounds for role in r.order]).cells
    assert (spec.values["prefix_hit_tokens"].value, spec.values["prefix_hit_tokens"].n) == (12, 8)
    assert "prefix_hit_tokens" not in baseline.values


# ── goodput ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def served_run(limits: LatencyLimits | None) -> CellResult:
    """Two requests a block: TTFT 10 ms and 11 ms, TPOT 1 ms, chunks of one token each."""
    small_plan = plan_of(replace(scenario(batch=(2,), steps=10), goodput=limits))

    def counted(b: Block) -> Block:
        assert b.served is not None
        requests = tuple(ServedRequest(r.sent_ns, r.chunk_ns, (1,) * 11) for r in b.served.requests)
        return replace(b, served=Served(requests, b.served.acceptance))

    return spec_of(run_of(small_plan, [counted(served.block(r, role)) for r in small_plan.rounds for role in r.order]))


def test_goodput_is_the_share_and_the_rate_of_the_requests_within_every_limit() -> None:
    values = served_run(LatencyLimits(ttft_ms=10.5, tpot_ms=1.0)).values
    assert values["goodput_share"].value == 0.5 and values["goodput_share"].n == 16
    # Eight blocks of 22 ms each, one request of two within the limits.
    assert values["goodput_req_s"].value == pytest.approx(8 / (8 * 0.022))
    assert served_run(LatencyLimits(tpot_ms=0.9)).values["goodput_share"].value == 0.0
    assert "goodput_share" not in served_run(None).values


def test_requests_that_all_keep_to_a_limit_leave_room_for_one_block_that_does_not() -> None:
    """All 16 requests keep to the limit, in 8 blocks that are alike: of nine blocks one would have missed."""
    from scipy.stats import t

    share = served_run(LatencyLimits(e2e_ms=25.0)).values["goodput_share"]
    assert (share.value, share.ci_high) == (1.0, 1.0)
    assert share.ci_low == pytest.approx((8 - t.ppf(1 - 0.0035, 8)) / 9)


def test_an_engine_without_a_server_has_no_goodput() -> None:
    small_plan = plan_of(replace(scenario(kind="full"), goodput=LatencyLimits(ttft_ms=1e9)))
    assert "goodput_share" not in spec_of(run_of(small_plan, blocks_of(small_plan))).values

"""Memory that blocks report, the share that speculation adds, and the judgement of the gate `memory`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate import plugins
from specgate.analysis.machine.memory import size_in_words, with_memory
from specgate.contract import Block, Rule, Run, State
from specgate.contract.samples.memory import MemoryUse
from specgate.contract.traffic import LinkTraffic, PassTraffic, Traffic
from specgate.gates.memory import MemoryGate
from specgate.reports.common.memory import sentences, table
from specgate.reports.page.html import REPORT
from tests.support.factories import POLICY, blocks_of, plan_of, run_of

GIB = 1 << 30


def run_with(baseline: MemoryUse, spec: MemoryUse) -> Run:
    """A run of baseline and spec-3 whose every block ended with this memory in use."""

    def change(block: Block) -> Block:
        return replace(block, memory=spec if block.role.speculative else baseline)

    plan = plan_of()
    blocks = blocks_of(plan, change=change)
    run = run_of(plan, blocks)
    return replace(run, cells=with_memory(run.cells, blocks))


def figures(run: Run, k: int) -> dict[str, float | None]:
    values = next(c.values for c in run.cells if c.cell.role.k == k)
    shown = {name: v.value for name, v in values.items() if "memory" in name or name.startswith("kv_")}
    return {name: value for name, value in shown.items() if "growth" not in name}


def judged(run: Run, **params: Any) -> tuple[State, str, str]:
    rule = Rule("room", "memory", True, params=params)
    (verdict,) = plugins.gate("memory").judge(rule, run)
    return verdict.state, verdict.reason_code, verdict.message


SERVER = MemoryUse(
    7, host_bytes=2 * GIB, gpu_bytes=40 * GIB, device_bytes=80 * GIB, kv_tokens=100_000, kv_bytes=20 * GIB
)
SPEC = MemoryUse(8, host_bytes=3 * GIB, gpu_bytes=41 * GIB, device_bytes=81 * GIB, kv_tokens=85_000, kv_bytes=17 * GIB)


def test_a_role_with_a_process_of_its_own_shows_what_speculation_adds() -> None:
    run = run_with(SERVER, SPEC)
    assert figures(run, 0) == {
        "peak_gpu_memory_bytes": 40 * GIB,
        "peak_device_memory_bytes": 80 * GIB,
        "peak_host_memory_bytes": 2 * GIB,
        "kv_capacity_tokens": 100_000,
        "kv_cache_bytes": 20 * GIB,
    }
    added = {name: figures(run, 3)[name] for name in ("extra_gpu_memory_bytes", "extra_host_memory_bytes")}
    assert added == {"extra_gpu_memory_bytes": GIB, "extra_host_memory_bytes": GIB}
    assert figures(run, 3)["kv_capacity_loss"] == pytest.approx(0.15)
    assert list(sentences(run)) == [
        "memory: baseline 40.00 GiB, spec-3 41.00 GiB (+1.00 GiB) of the GPU; "
        "KV cache for baseline 100,000, spec-3 85,000 (-15.0 %) tokens"
    ]
    assert "Memory in use" in REPORT.render(run, POLICY) and len(table(run).rows) == 2


def test_in_one_process_no_difference_is_claimed() -> None:
    run = run_with(SERVER, replace(SPEC, process=7))
    assert not {"extra_gpu_memory_bytes", "extra_host_memory_bytes", "kv_capacity_loss"} & figures(run, 3).keys()
    assert judged(run, max_extra_memory_bytes=GIB)[:2] == (State.NOT_JUDGED, "not_told")


def test_the_peak_is_the_largest_reading_and_the_capacity_the_least() -> None:
    plan, sizes = plan_of(), iter(range(1, 1000))

    def change(block: Block) -> Block:
        n = next(sizes)
        return replace(block, memory=None if block.warmup else MemoryUse(7, host_bytes=n, kv_tokens=10_000 - n))

    blocks = blocks_of(plan, change=change)
    cells = with_memory(run_of(plan, blocks).cells, blocks)
    for cell in cells:
        seen = [b.memory for b in blocks if b.cell == cell.cell and b.memory is not None]
        assert cell.values["peak_host_memory_bytes"].value == max(m.host_bytes or 0 for m in seen)
        assert cell.values["kv_capacity_tokens"].value == min(m.kv_tokens or 0 for m in seen)
        assert cell.values["peak_host_memory_bytes"].n == len(seen)


def test_a_run_that_recorded_no_memory_stays_as_it_was() -> None:
    plan = plan_of()
    blocks = blocks_of(plan)
    run = run_of(plan, blocks)
    assert with_memory(run.cells, blocks) == run.cells
    assert not list(sentences(run)) and not table(run).rows and "Memory in use" not in REPORT.render(run, POLICY)


def test_where_the_driver_tells_no_processes_apart_the_whole_gpu_is_said_to_be_that() -> None:
    run = run_with(replace(SERVER, gpu_bytes=None), replace(SPEC, gpu_bytes=None))
    (sentence,) = sentences(run)
    assert "baseline 80.00 GiB, spec-3 81.00 GiB of the GPU, whoever used it" in sentence
    assert "extra_gpu_memory_bytes" not in figures(run, 3)
    assert judged(run, max_extra_memory_bytes=float(9 * GIB))[0] is State.NOT_JUDGED  # host memory is no answer there


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        (SERVER, "41.00 GiB (+1.00 GiB) per GPU (of 2); KV"),
        (replace(SERVER, gpu_bytes=None), " per GPU (of 2), whoever"),
    ],
)
def test_of_several_gpus_the_figure_is_said_to_be_one_gpus(baseline: MemoryUse, message: str) -> None:
    run = run_with(baseline, SPEC if baseline is SERVER else replace(SPEC, gpu_bytes=None))
    link = Traffic(PassTraffic(0, 0, ()), link=LinkTraffic(2, 8192))
    run = replace(run, engines={key: replace(e, traffic=link) for key, e in run.engines.items()})
    (sentence,) = sentences(run)
    assert message in sentence and "of the GPU" not in sentence


def test_the_gate_holds_memory_and_capacity_to_what_is_asked() -> None:
    run = run_with(SERVER, SPEC)
    state, _, text = judged(run, max_extra_memory_bytes=float(GIB), max_capacity_loss=0.15000001)
    assert state is State.PASS and "1.00 GiB more GPU memory than baseline" in text and "15.0 % of the KV cache" in text
    assert judged(run, max_extra_memory_bytes=GIB - 1.0)[:2] == (State.FAIL, "above_max")
    assert judged(run, max_extra_memory_share=0.025)[0] is State.PASS
    assert judged(run, max_extra_memory_share=0.024)[0] is State.FAIL
    state, _, text = judged(run, max_extra_memory_share=1.0, max_capacity_loss=0.14)
    assert state is State.FAIL and "more GPU memory" not in text and "at most 14 % asked" in text


def growing(by: int, processes: int = 1, count: int = 100, device_bytes: int | None = None) -> Run:
    """A run whose engine holds `by` bytes more of the host's memory after each of its first `count` blocks."""
    plan = plan_of()
    blocks = [
        replace(
            block, memory=MemoryUse(1 + i % processes, host_bytes=GIB + by * min(i, count), device_bytes=device_bytes)
        )
        for i, block in enumerate(blocks_of(plan))
    ]
    return replace(run_of(plan, blocks), cells=with_memory(run_of(plan, blocks).cells, blocks))


def test_memory_that_grows_from_block_to_block_is_seen_in_any_role_and_without_a_baseline() -> None:
    assert judged(growing(0), max_growth_share=0.05)[:2] == (State.PASS, "at_most_max")
    state, code, message = judged(growing(GIB // 16), max_growth_share=0.05)
    assert (state, code) == (State.FAIL, "above_max")
    assert re.fullmatch(
        r"host memory grew by \d+ MiB over \d+ blocks, \d\d\.\d % of its peak, at most 5 % asked", message
    )
    run = growing(GIB // 16)
    alone = replace(run, scenarios={name: replace(s, baseline=False) for name, s in run.scenarios.items()})
    assert judged(alone, max_growth_share=0.05)[0] is State.FAIL
    assert judged(growing(GIB // 16, count=2), max_growth_share=0.05)[0] is State.PASS, "caches that fill at the start"


def test_a_growth_of_the_host_alone_is_no_answer_where_a_gpu_is_used() -> None:
    state, code, message = judged(growing(0, device_bytes=GIB), max_growth_share=0.05)
    assert (state, code) == (State.NOT_JUDGED, "not_told") and "whether GPU memory grows is not told" in message
    assert judged(growing(GIB // 16, device_bytes=GIB), max_growth_share=0.05)[:2] == (State.FAIL, "above_max")


def test_a_growth_of_too_few_blocks_is_not_judged_and_skipped_where_it_only_advises() -> None:
    run = growing(GIB // 16, processes=12)
    assert judged(run, max_growth_share=0.05)[:2] == (State.NOT_JUDGED, "not_told")
    (verdict,) = plugins.gate("memory").judge(Rule("r", "memory", False, params={"max_growth_share": 0.05}), run)
    assert verdict.state is State.SKIPPED and "fewer than 6 blocks of one process" in verdict.message


def on_host(use: MemoryUse) -> MemoryUse:
    return replace(use, gpu_bytes=None, device_bytes=None)


def test_without_a_gpu_the_gate_judges_the_host_and_says_so() -> None:
    run = run_with(on_host(SERVER), on_host(SPEC))
    assert "1.00 GiB more host memory" in judged(run, max_extra_memory_bytes=2.0 * GIB)[2]
    assert "of the host" in next(iter(sentences(run)))


def test_a_rule_that_asks_for_nothing_is_refused_and_what_was_not_told_is_not_judged() -> None:
    run = run_with(SERVER, replace(SPEC, kv_tokens=None))
    ((key, why),) = MemoryGate().problems(Rule("memory", "memory", True))
    assert key == "gate" and "max_capacity_loss" in why
    state, code, text = judged(run, max_extra_memory_bytes=float(2 * GIB), max_capacity_loss=0.5)
    assert (state, code) == (State.NOT_JUDGED, "not_told") and "KV cache" in text


def test_where_the_baselines_cell_failed_no_share_of_its_memory_is_judged() -> None:
    run = run_with(SERVER, SPEC)
    without = [c if c.cell.role.speculative else replace(c, status="failed", values={}) for c in run.cells]
    state, code, text = judged(replace(run, cells=tuple(without)), max_extra_memory_share=0.5)
    assert (state, code) == (State.NOT_JUDGED, "not_told") and "the baseline's cell has no figures" in text


def test_a_rule_whose_every_key_is_empty_passes_nothing() -> None:
    assert judged(run_with(SERVER, SPEC), max_capacity_loss=None)[0] is State.NOT_JUDGED


def test_caches_that_were_sized_by_what_was_left_are_not_compared() -> None:
    run = run_with(SERVER, replace(SPEC, kv_beside=True))
    assert "kv_capacity_loss" not in figures(run, 3) and figures(run, 3)["kv_capacity_tokens"] == 85_000
    assert "extra_gpu_memory_bytes" in figures(run, 3)
    assert judged(run, max_capacity_loss=0.5)[:2] == (State.NOT_JUDGED, "not_told")


def test_what_listens_for_a_server_started_elsewhere_may_be_a_tunnel() -> None:
    def attached(run: Run, **more: str) -> Run:
        details = {"servers": "attached", "baseline listens as": "ssh", **more}
        return replace(run, engines={key: replace(facts, details=details) for key, facts in run.engines.items()})

    run = run_with(on_host(SERVER), on_host(SPEC))
    state, code, text = judged(attached(run), max_extra_memory_bytes=2.0 * GIB)
    assert (state, code) == (State.NOT_JUDGED, "not_told") and "ssh may only pass requests on" in text
    known, seen = attached(run, **{"servers run on": "cpu"}), attached(run_with(SERVER, SPEC))
    for each, where in ((known, "host"), (seen, "GPU")):
        rule = Rule("room", "memory", True, params={"max_extra_memory_bytes": 2.0 * GIB})
        (verdict,) = plugins.gate("memory").judge(rule, each)
        assert verdict.state is State.PASS and f"more {where} memory" in verdict.message
        assert verdict.evidence["baseline listens as"] == "ssh"


@given(st.integers(0, 1 << 50))
def test_a_size_in_words_is_that_size_to_what_is_shown(size: int) -> None:
    number, unit = size_in_words(size).replace(",", "").split(" ")
    factor = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB}[unit]
    assert abs(float(number) * factor - size) <= factor / 2

"""The table and the JSON of a prefill's parts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specgate.backends.eagle3.nouns.kernel_bench import WHOLE, PartTiming, PrefillBench
from specgate.backends.eagle3.tuning.prefill_report import WIDTH, as_record, show
from specgate.files.writing import write_json

GATE_UP = PartTiming(
    length=32000,
    part="gate_up",
    how="cuBLAS",
    used=True,
    shape="32000×28672×4096",
    times=31,
    us=10_000.0,
    spread=0.01,
    flops=7_516_192_768_000,
    size=2_332_000_000,
    error=2e-3,
    tolerance=4e-3,
    sm_clock_mhz=1590.0,
    power_w=697.4,
)
RESIDUAL = replace(GATE_UP, part="residual", how="fused", times=62, us=400.0, flops=0, size=1_572_864_000)
TORCH = replace(RESIDUAL, how="torch", used=False, us=1200.0)
ALL = replace(GATE_UP, part=WHOLE, how="fused, chunks of 4096", times=1, us=340_000.0, flops=10**14, size=10**9)
BENCH = PrefillBench(
    measured="2026-11-23T00:00:00+00:00",
    device="NVIDIA H200",
    pair="planted-llama-3.1-8b-al3.0",
    attention="cuDNN 9.10.2",
    bytes_per_s=4.0e12,
    flops_per_s=8.0e14,
    seconds=99.0,
    parts=(GATE_UP, RESIDUAL, TORCH, ALL),
)


def text_of(bench: PrefillBench) -> str:
    out = StringIO()
    show(bench, Console(file=out, width=WIDTH))
    return out.getvalue()


def test_a_line_has_time_floor_share_and_both_rates_with_clock_and_power() -> None:
    line = next(line for line in text_of(BENCH).splitlines() if "gate_up" in line)
    floor = 7.516192768e12 / 8e14  # seconds: computing takes longer than moving 2.3 GB
    for part in (
        "cuBLAS *",
        " 31 ",
        "310.00",
        f"{31e3 * floor:.2f}",
        f"{floor / 0.01:.1%}",
        "752",
        "0.23",
        "1590",
        "697",
    ):
        assert part in line


def test_a_part_that_computes_nothing_is_held_to_the_bytes_it_moves() -> None:
    assert BENCH.floor_us(RESIDUAL) == pytest.approx(1.572864e9 / 4e12 * 1e6)
    line = next(line for line in text_of(BENCH).splitlines() if "residual" in line)
    assert f"{1.572864e9 / 4e12 / 400e-6:.1%}" in line and "3.93" in line


def test_what_lies_between_the_parts_is_the_whole_without_the_parts_that_are_used() -> None:
    alone = 31 * 10.0 + 62 * 0.4
    assert f"{alone:.2f} ms; the whole 340.00 ms, between the parts {340 - alone:.2f} ms" in text_of(BENCH)


@given(
    part=st.text("abcdef _", min_size=1, max_size=40),
    how=st.text("abcdef ,", min_size=1, max_size=60),
    us=st.floats(1e-1, 1e8),
    clock=st.none() | st.floats(1, 9999),
    reason=st.text("abc def", max_size=300),
)
def test_no_table_is_wider_than_promised(part: str, how: str, us: float, clock: float | None, reason: str) -> None:
    made = replace(GATE_UP, part=part, how=how, us=us, sm_clock_mhz=clock)
    failed = replace(made, us=None, used=False, reason=reason)
    assert max(map(len, text_of(replace(BENCH, parts=(made, failed))).splitlines())) <= WIDTH


@pytest.mark.parametrize("error", [0.5, math.nan, math.inf])
def test_a_wrong_result_is_marked_and_its_error_named(error: float) -> None:
    text = text_of(replace(BENCH, parts=(replace(GATE_UP, error=error),)))
    assert "gate_up WRONG" in text and f"relative error {error:.3g}" in text
    assert "WRONG" not in text_of(BENCH)


def test_a_way_that_failed_gives_its_reason_once() -> None:
    failed = replace(TORCH, how="cudnn", us=None, reason="RuntimeError: No available kernel")
    text = text_of(replace(BENCH, parts=(GATE_UP, failed, replace(failed, length=8192))))
    assert text.count("residual by cudnn failed: RuntimeError: No available kernel") == 1 and "WRONG" not in text


def test_the_record_is_json_with_its_schema_and_what_follows_from_the_figures(tmp_path: Path) -> None:
    file = tmp_path / "new" / "prefill.json"
    write_json(file, as_record(replace(BENCH, parts=(GATE_UP, replace(RESIDUAL, error=math.nan), ALL))))
    record = json.loads(file.read_text())
    assert record["schema"] == "specgate.prefill-bench/v1"
    product, residual, _ = record["parts"]
    assert product["floor_us"] == pytest.approx(7.516192768e12 / 8e14 * 1e6) and product["right"] is True
    assert product["share"] == pytest.approx(product["floor_us"] / 10_000)
    assert residual["right"] is False and residual["error"] is None
    assert record["used_parts_us"] == {"32000": 31 * 10_000.0 + 62 * 400.0}

"""The table and the JSON of a kernel benchmark."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specgate.backends.eagle3.nouns.kernel_bench import KernelBench, KernelTiming, PeerTiming, step_us
from specgate.backends.eagle3.tuning.kernel_report import WIDTH, as_record, show
from specgate.files.writing import write_json

GEMM = KernelTiming(
    role="spec-3",
    tag="TARGET_FFN_GATE_UP",
    function="matmul_rows",
    shape="4×28672×4096",
    per_step=32,
    us=60.0,
    spread=0.01,
    size=235_000_000,
    peers=(PeerTiming("cuBLAS", 66.0),),
)
COMMIT = replace(GEMM, tag="COMMIT_REWIND", function="commit", shape="1 slots", per_step=1, us=2.0, size=84, peers=())
BENCH = KernelBench(
    measured="2026-11-21T00:00:00+00:00",
    device="NVIDIA H200",
    pair="planted-llama-3.1-8b-al3.0",
    context=32768,
    batch=1,
    bytes_per_s=4.48e12,
    l2_bytes=50 << 20,
    seconds=31.5,
    kernels=(GEMM, COMMIT, replace(GEMM, role="baseline", us=58.0)),
    versions={"torch": "2.11.0"},
)


def text_of(bench: KernelBench) -> str:
    out = StringIO()
    show(bench, Console(file=out, width=WIDTH))
    return out.getvalue()


def test_a_line_names_kernel_shape_time_bytes_share_and_peer() -> None:
    line = next(line for line in text_of(BENCH).splitlines() if "GATE_UP" in line)
    for part in ("4×28672×4096", " 32 ", "60.00", "235.0", f"{235e6 / 60e-6 / 4.48e12:.1%}", "cuBLAS 66.00 (1.10×)"):
        assert part in line


def test_each_role_has_a_table_and_the_sum_of_its_launches() -> None:
    assert step_us((GEMM, COMMIT)) == 32 * 60 + 2
    text = text_of(BENCH)
    assert text.index("spec-3:") < text.index("1.922 ms") < text.index("baseline:") < text.index("1.856 ms")


@given(
    tag=st.text("ABCDEFGH_", min_size=1, max_size=60),
    shape=st.text("0123456789×", min_size=1, max_size=60),
    us=st.floats(1e-3, 1e6),
    size=st.integers(1, 1 << 40),
    reason=st.text("abc def", max_size=300),
)
def test_no_table_is_wider_than_promised(tag: str, shape: str, us: float, size: int, reason: str) -> None:
    peers = (PeerTiming("cuBLAS", us), PeerTiming("FlashInfer", None, reason))
    kernel = replace(GEMM, tag=tag, shape=shape, us=us, size=size, peers=peers)
    assert max(map(len, text_of(replace(BENCH, kernels=(kernel,))).splitlines())) <= WIDTH


def test_a_peer_that_failed_gives_its_reason_once() -> None:
    failed = replace(GEMM, peers=(PeerTiming("FlashInfer", None, "RuntimeError: no compiler"),))
    text = text_of(replace(BENCH, kernels=(failed, failed)))
    assert text.count("FlashInfer failed beside") == 1 and "no compiler" in text


def test_the_record_is_json_with_its_schema_and_what_follows_from_the_figures(tmp_path: Path) -> None:
    file = tmp_path / "new" / "kernels.json"
    write_json(file, as_record(replace(BENCH, kernels=(GEMM, COMMIT))))
    record = json.loads(file.read_text())
    assert record["schema"] == "specgate.kernel-bench/v1"
    gemm, _ = record["kernels"]
    assert gemm["share"] == pytest.approx(gemm["bytes_per_s"] / record["bytes_per_s"])
    assert gemm["bytes_per_s"] == pytest.approx(235e6 / 60e-6)
    assert gemm["peers"] == [{"name": "cuBLAS", "us": 66.0, "reason": ""}]
    assert record["step_us"] == {"spec-3": 1922.0}

"""The preflight of several GPUs: each is looked at, what differs is named, and the table stays in 80 columns."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specgate.analysis.machine.gpu_clocks import visible_among
from specgate.cli import cli
from specgate.contract import Bandwidth
from specgate.contract.conditions import HostReading
from specgate.machine import bandwidth
from tests.support.fake_nvml import Driver, Gpu

QUIET = HostReading(load_average=0.1, other_cpu_share=0.02, available_memory_bytes=64 << 30, swap_used_bytes=0)
CUT = (5, 5, 5)
"""Neither reading nor writing nor NVLink."""


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("specgate.machine.doctor.LOOK_S", 0.0)
    monkeypatch.setattr("specgate.machine.host.HostProbe.read", lambda self: QUIET)


def gpus(count: int) -> list[Gpu]:
    return [Gpu(uuid=f"GPU-5a1e000{i}-0000-4000-8000-000000000001") for i in range(count)]


def examined(monkeypatch: pytest.MonkeyPatch, result: list[Gpu], *arguments: str) -> Result:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(result))
    return CliRunner().invoke(cli, ["machine", "doctor", "--policy", "seed", *arguments])


def in_one_line(result: Result) -> str:
    return " ".join(result.output.split())


def check(result: Result, name: str) -> tuple[str, str]:
    (results,) = (c for c in json.loads(result.stdout)["checks"] if c["name"] == name)
    return results["level"], results["found"]


@pytest.mark.parametrize("count", [2, 8])
def test_gpus_that_are_alike_take_one_line_for_each_check(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    one, several = examined(monkeypatch, gpus(1)), examined(monkeypatch, gpus(count))
    assert several.exit_code == 0, several.output
    assert f"GPU {count - 1}  GPU-5a1e000{count - 1}-0000-4000-8000-000000000001  NVIDIA H200" in several.output
    lines = several.output.rstrip().split("\n")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= len(one.output.rstrip().split("\n")) + count + 3


def test_one_gpu_looks_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(examined(monkeypatch, gpus(1), "--json").stdout)
    assert record.keys() == {"schema", "policy", "fit", "checks"}
    assert {key for c in record["checks"] for key in c} == {"name", "found", "right", "level"}
    assert "GPU 0" not in examined(monkeypatch, gpus(1)).output


def test_a_fault_of_a_later_gpu_is_seen_and_the_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = gpus(8)
    lines[5].processes, lines[6].reasons = [os.getppid()], 0x40
    result = examined(monkeypatch, lines)
    assert result.exit_code == 4
    text = in_one_line(result)
    assert "GPU 5: pid" in text
    assert "rejected for GPU 5: GPU processes, GPU 6: clock events" in text
    assert "GPU 0, 1, 2, 3, 4, 7 would do: CUDA_VISIBLE_DEVICES hides the others" in text
    assert max(map(len, result.output.split("\n"))) <= 80
    record = json.loads(examined(monkeypatch, lines, "--json").stdout)
    assert [g["fit"] for g in record["gpus"]] == [True] * 5 + [False] * 2 + [True]
    assert [(c["name"], c["gpu"]) for c in record["checks"] if c["level"] == "reject"] == [
        ("GPU processes", 5),
        ("clock events", 6),
    ]


def test_only_those_that_cuda_shows_are_looked_at_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = gpus(4)
    lines[2].processes = [os.getppid()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    result = examined(monkeypatch, lines, "--json")
    assert result.exit_code == 0
    assert [g["uuid"][:12] for g in json.loads(result.stdout)["gpus"]] == ["GPU-5a1e0003", "GPU-5a1e0001"]


# ── the bandwidth of each ────────────────────────────────────────────────────────────────────────────────────────────


def read_at(uuid: str, bytes_per_s: float) -> Bandwidth:
    return Bandwidth("2026-11-26T09:00:00+00:00", "NVIDIA H200", uuid, 10**10, 30, bytes_per_s, 0.001)


def test_every_gpus_memory_is_read_and_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates = dict(zip([g.uuid for g in gpus(3)], (4.6e12, 4.5e12, 4.4e12), strict=True))
    monkeypatch.setattr(bandwidth, "measure_apart", lambda uuid: read_at(uuid, rates[uuid]))
    arguments = ("--bandwidth", "--out", str(tmp_path / "runs"))
    record = json.loads(examined(monkeypatch, gpus(3), *arguments, "--json").stdout)
    assert [b["bytes_per_s"] for b in record["bandwidths"]] == list(rates.values())
    assert record["bandwidth"] == record["bandwidths"][0]
    assert sorted(f.name for f in (tmp_path / "noise").iterdir()) == [f"5a1e000{i}-bandwidth.json" for i in range(3)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    stored = bandwidth.bandwidth_of(tmp_path / "runs")
    assert stored is not None and stored.bytes_per_s == 4.5e12


def test_a_gpu_is_read_in_a_process_that_sees_it_alone() -> None:
    assert bandwidth.seeing_only("GPU-x", shown) == "GPU-x"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert visible_among([{"uuid": "GPU-x"}], "GPU-x")


def shown() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")

"""Several GPUs that are measured together: one reading, of whatever is worst on any of them."""

from __future__ import annotations

import os
import sys

import pytest

from specgate.contract.conditions import ClockReading, GpuProcess, GpuReading
from specgate.machine import inventory
from specgate.machine.monitor import Sampler
from specgate.machine.nvml import slowest_of, worst_of
from specgate.run.watched_gpus import used_gpus
from tests.support.fake_nvml import Driver, Gpu

OURS, OTHER = GpuProcess(1, "ours"), GpuProcess(2, "foreign")


def reading(uuid: str, **fields: object) -> GpuReading:
    return GpuReading(uuid, **fields)  # type: ignore[arg-type]  # each of its own type


def test_one_reading_is_itself() -> None:
    one = reading("GPU-a", sm_clock_mhz=7)
    assert worst_of([one]) is one


def test_the_worst_of_each_field_counts() -> None:
    a = reading(
        "GPU-a", processes=(OURS,), clock_event_reasons=0x1, sm_clock_mhz=1900, temperature_c=40, power_mw=300,
        memory_total_bytes=10, memory_used_bytes=3, ecc_uncorrected=0, rows_in_trouble=False, utilization_pct=99,
        thermal_violation_ns=5, power_violation_ns=0, power_limit_mw=700, default_power_limit_mw=700,
        max_sm_clock_mhz=1980, energy_mj=7_000,
    )  # fmt: skip
    b = reading(
        "GPU-b", processes=(OTHER, OURS), clock_event_reasons=0x20, sm_clock_mhz=1200, temperature_c=85, power_mw=500,
        memory_total_bytes=10, memory_used_bytes=9, ecc_uncorrected=2, rows_in_trouble=True, utilization_pct=0,
        thermal_violation_ns=7, power_violation_ns=1, power_limit_mw=600, default_power_limit_mw=700,
        max_sm_clock_mhz=1980, energy_mj=5_000,
    )  # fmt: skip
    worst = worst_of([a, b])
    assert worst.uuid == "GPU-a" and worst.processes == (OURS, OTHER)
    assert (worst.clock_event_reasons, worst.sm_clock_mhz, worst.temperature_c) == (0x21, 1200, 85)
    assert (worst.thermal_violation_ns, worst.power_violation_ns, worst.power_limit_mw) == (12, 1, 600)
    assert (worst.ecc_uncorrected, worst.rows_in_trouble, worst.utilization_pct) == (2, True, 0)
    assert (worst.memory_used_bytes, worst.memory_total_bytes, worst.energy_mj) == (9, 10, 12_000)


def test_what_one_of_them_does_not_give_is_not_known_and_named() -> None:
    a = reading("GPU-a", sm_clock_mhz=1900, temperature_c=40)
    b = reading("GPU-b", temperature_c=50, unread={"sm_clock_mhz": "not supported"})
    worst = worst_of([a, b])
    assert worst.sm_clock_mhz is None and worst.temperature_c == 50
    assert worst.unread == {"sm_clock_mhz": "GPU-b: not supported"}


def test_the_slowest_clock_every_reason_and_all_energy_count() -> None:
    assert slowest_of([ClockReading(5, 1900, 0x1, 40), ClockReading(6, 1500, 0x4, 2)]) == ClockReading(5, 1500, 0x5, 42)
    assert slowest_of([ClockReading(5, 1900, 0x1), ClockReading(6, None, None)]) == ClockReading(5, None, None)


def test_a_throttle_of_the_second_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(), Gpu(uuid="GPU-second")]
    gpus[1].reasons = 0x40
    monkeypatch.setitem(sys.modules, "pynvml", Driver(gpus))
    sampler = Sampler(0, os.getpid(), [gpu.uuid for gpu in gpus])
    sampler.read_clock()
    sample = sampler.sample()
    sampler.close()
    assert sample.gpu is not None and sample.gpu.clock_event_reasons is not None
    assert sample.gpu.clock_event_reasons & 0x40 and sample.clocks[0].event_reasons == sample.gpu.clock_event_reasons


def test_a_gpu_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([Gpu()]))
    sampler = Sampler(0, os.getpid(), [Gpu().uuid, "GPU-none"])
    sample = sampler.sample()
    sampler.close()
    assert sample.gpu is None and sample.nvml is not None and "GPU-none" in sample.nvml


@pytest.mark.engine
@pytest.mark.parametrize(
    ("backend", "options", "count"),
    [
        ("cupy", {}, 1),
        ("cupy", {"tp": "2"}, 2),
        ("cupy", {"tp": "two"}, 1),
        ("cupy", {"tp": "0"}, 1),
        ("reference", {"tp": "2"}, 1),
    ],
)
def test_a_run_watches_as_many_gpus_as_its_back_end_uses(
    monkeypatch: pytest.MonkeyPatch, backend: str, options: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(inventory, "gpus", lambda: [{"uuid": f"GPU-{i}"} for i in range(4)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert used_gpus(backend, options) == tuple(f"GPU-{i}" for i in range(count))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert used_gpus(backend, options) == ("GPU-3", "GPU-1")[:count]

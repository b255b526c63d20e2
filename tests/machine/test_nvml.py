"""A GPU is read by UUID; what the driver refuses is None with the reason, and an all-zero driver is noticed."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import asdict

import pynvml
import pytest

from specgate.contract.conditions import GpuProcess, clock_events
from specgate.machine.nvml import GpuProbe, NvmlMissing
from tests.support import fake_nvml
from tests.support.fake_nvml import GPU_IS_LOST, LIBRARY_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, Driver, Gpu, liar

A, B = "GPU-aaaa", "GPU-bbbb"


def installed(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, init_error: int | None = None) -> Driver:
    driver = Driver(gpus, init_error=init_error)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return driver


def ours(pid: int) -> GpuProcess:
    return GpuProcess(pid, "ours")


@pytest.mark.parametrize("call", sorted(fake_nvml._ANSWERS))
def test_the_fake_driver_answers_calls_that_the_real_module_has_with_as_many_arguments(call: str) -> None:
    real = inspect.signature(getattr(pynvml, f"nvmlDeviceGet{call}")).parameters
    fake = inspect.signature(fake_nvml._ANSWERS[call]).parameters
    required = [p for p in real.values() if p.default is inspect.Parameter.empty]
    assert len(required) <= len(fake) <= len(real)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (fake_nvml.UNINITIALIZED, "NVML_ERROR_UNINITIALIZED"),
        (fake_nvml.INVALID_ARGUMENT, "NVML_ERROR_INVALID_ARGUMENT"),
        (NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED"),
        (NO_PERMISSION, "NVML_ERROR_NO_PERMISSION"),
        (fake_nvml.NOT_FOUND, "NVML_ERROR_NOT_FOUND"),
        (fake_nvml.DRIVER_NOT_LOADED, "NVML_ERROR_DRIVER_NOT_LOADED"),
        (LIBRARY_NOT_FOUND, "NVML_ERROR_LIBRARY_NOT_FOUND"),
        (GPU_IS_LOST, "NVML_ERROR_GPU_IS_LOST"),
    ],
)
def test_the_fake_drivers_error_codes_are_the_real_ones(code: int, name: str) -> None:
    assert code == getattr(pynvml, name)


def test_clock_event_bits_are_named_as_the_driver_numbers_them() -> None:
    assert clock_events(pynvml.nvmlClocksEventReasonHwThermalSlowdown) == ["hw_thermal_slowdown"]
    assert clock_events(pynvml.nvmlClocksEventReasonSwThermalSlowdown) == ["sw_thermal_slowdown"]
    assert clock_events(pynvml.nvmlClocksEventReasonHwSlowdown) == ["hw_slowdown"]
    assert clock_events(pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown) == ["hw_power_brake_slowdown"]
    assert clock_events(pynvml.nvmlClocksEventReasonSwPowerCap | 0x8000) == ["sw_power_cap", "0x8000"]
    assert clock_events(0) == []


def test_the_gpu_is_found_by_uuid_whatever_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = installed(monkeypatch, Gpu(uuid=A, temperature_c=30), Gpu(uuid=B, temperature_c=40))
    with GpuProbe(B, ours) as probe:
        assert (probe.read().uuid, probe.read().temperature_c) == (B, 40)
        driver.gpus.reverse()
        assert probe.read().temperature_c == 40
    assert driver.open == 0


def test_a_reading_holds_every_figure_with_compute_and_graphics_processes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(uuid=A, graphics=[7], violations_ns={0: 11, 1: 12}, ecc_uncorrected=3, remapped=(0, 0, 1, 0)).busy(9, 7)
    installed(monkeypatch, gpu)
    with GpuProbe(A, ours) as probe:
        reading = probe.read()
    assert reading.processes == (ours(7), ours(9))
    assert (reading.power_violation_ns, reading.thermal_violation_ns) == (11, 12)
    assert (reading.ecc_uncorrected, reading.rows_in_trouble) == (3, True)
    assert (reading.sm_clock_mhz, reading.power_mw, reading.utilization_pct) == (1980, 420_000, 99)
    assert not reading.unread and not reading.zeros and not reading.silent
    assert json.loads(json.dumps(asdict(reading)))["memory_total_bytes"] == gpu.memory_total


def test_a_driver_that_gives_zeros_everywhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, liar(A))
    with GpuProbe(A, ours) as probe:
        reading = probe.read()
    assert not reading.unread and not reading.silent
    assert set(reading.zeros) >= {"sm_clock_mhz", "power_mw", "temperature_c", "memory_total_bytes"}


FIELDS = {
    "ComputeRunningProcesses": "processes",
    "CurrentClocksEventReasons": "clock_event_reasons",
    "ViolationStatus": "thermal_violation_ns",
    "ClockInfo": "sm_clock_mhz",
    "PowerUsage": "power_mw",
    "EnforcedPowerLimit": "power_limit_mw",
    "PowerManagementDefaultLimit": "default_power_limit_mw",
    "Temperature": "temperature_c",
    "UtilizationRates": "utilization_pct",
    "MemoryInfo": "memory_total_bytes",
    "TotalEccErrors": "ecc_uncorrected",
    "RemappedRows": "rows_in_trouble",
}


@pytest.mark.parametrize("call", FIELDS)
def test_a_call_that_is_refused_costs_its_own_figure_and_is_kept_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    installed(monkeypatch, Gpu(uuid=A, refuses={call: NO_PERMISSION}).busy(5))
    with GpuProbe(A, ours) as probe:
        reading = probe.read()
    assert getattr(reading, FIELDS[call]) is None
    assert reading.unread[FIELDS[call]] == "Insufficient Permissions"
    others = [name for c, name in FIELDS.items() if c != call]
    assert all(getattr(reading, name) is not None for name in others)


def test_a_gpu_that_falls_off_the_bus_leaves_a_silent_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = installed(monkeypatch, Gpu(uuid=A))
    with GpuProbe(A, ours) as probe:
        assert not probe.read().silent
        driver.lost = True
        reading = probe.read()
    assert reading.silent
    assert set(reading.unread.values()) == {"GPU is lost"}


@pytest.mark.parametrize(
    ("uuid", "init_error", "message"),
    [
        (A, LIBRARY_NOT_FOUND, "no NVIDIA driver: NVML Shared Library Not Found"),
        (B, None, "GPU GPU-bbbb: Not Found"),
        (None, None, "no GPU that CUDA programs may see"),
    ],
)
def test_where_there_is_nothing_to_ask_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None, init_error: int | None, message: str
) -> None:
    driver = installed(monkeypatch, Gpu(uuid=A), init_error=init_error)
    with pytest.raises(NvmlMissing, match=message):
        GpuProbe(uuid, ours)
    assert driver.open == 0


def test_a_driver_that_has_gone_does_not_keep_a_probe_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = installed(monkeypatch, Gpu(uuid=A))
    probe = GpuProbe(A, ours)
    driver.open = 0
    probe.close()
    assert driver.open == 0


def test_settings_that_the_driver_does_not_tell_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Gpu(uuid=A, mig=1, refuses={"EccMode": NOT_SUPPORTED}))
    with GpuProbe(A, ours) as probe:
        settings = probe.settings()
    assert (settings["mig"], settings["ecc"], settings["driver"]) == (True, None, "580.159.04")

"""One GPU through NVML: chosen by UUID, every call guarded, nothing changed.

A reading that the driver refuses is None, with the driver's reason beside it, so that "fine" and "not known" can be
told apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from specgate.core.conditions import ClockReading, GpuProcess, GpuReading

_SM_CLOCK, _GPU_SENSOR = 1, 0
_POWER, _THERMAL = 0, 1
_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0
_SLOWDOWN_THRESHOLD = 1


class NvmlMissing(Exception):
    """NVML is missing or does not know the GPU; the text says why."""


class GpuProbe:
    """A connection to the driver for one GPU. Raises NvmlMissing where there is none.

    `uuid`: the GPU that is measured; None where CUDA programs see none.
    `owner`: says who owns a process number.
    """

    def __init__(self, uuid: str | None, owner: Callable[[int], GpuProcess]) -> None:
        self._owner = owner
        try:
            import pynvml
        except ImportError as error:
            raise NvmlMissing(f"nvidia-ml-py is not installed: {error}") from error
        self._nvml: Any = pynvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NvmlMissing(f"no NVIDIA driver: {error}") from error
        if uuid is None:
            self.close()
            raise NvmlMissing("no GPU that CUDA programs may see")
        self.uuid = uuid
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            self.close()
            raise NvmlMissing(f"GPU {uuid}: {error}") from error

    def __enter__(self) -> GpuProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # the driver is already gone

    def read(self) -> GpuReading:
        """Everything that the monitor samples."""
        asked = _Asked(self._nvml, self._handle)
        processes = asked("processes", "ComputeRunningProcesses")
        drawing = asked("graphics_processes", "GraphicsRunningProcesses")
        held = None if processes is None else {p.pid for p in (*processes, *(drawing or ()))}
        memory = asked("memory_total_bytes", "MemoryInfo")
        use = asked("utilization_pct", "UtilizationRates")
        thermal, power = (
            asked(f"{name}_violation_ns", "ViolationStatus", policy)
            for name, policy in (("thermal", _THERMAL), ("power", _POWER))
        )
        rows = asked("rows_in_trouble", "RemappedRows")
        return GpuReading(
            uuid=self.uuid,
            processes=None if held is None else tuple(map(self._owner, sorted(held))),
            clock_event_reasons=asked("clock_event_reasons", "CurrentClocksEventReasons"),
            thermal_violation_ns=None if thermal is None else thermal.violationTime,
            power_violation_ns=None if power is None else power.violationTime,
            sm_clock_mhz=asked("sm_clock_mhz", "ClockInfo", _SM_CLOCK),
            max_sm_clock_mhz=asked("max_sm_clock_mhz", "MaxClockInfo", _SM_CLOCK),
            power_mw=asked("power_mw", "PowerUsage"),
            power_limit_mw=asked("power_limit_mw", "EnforcedPowerLimit"),
            default_power_limit_mw=asked("default_power_limit_mw", "PowerManagementDefaultLimit"),
            temperature_c=asked("temperature_c", "Temperature", _GPU_SENSOR),
            utilization_pct=None if use is None else use.gpu,
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            ecc_uncorrected=asked("ecc_uncorrected", "TotalEccErrors", _UNCORRECTED, _SINCE_DRIVER_LOAD),
            rows_in_trouble=None if rows is None else bool(rows[2] or rows[3]),
            unread=asked.refused,
        )

    def clock(self) -> ClockReading:
        """The SM clock and what lowers it: two calls, where `read` makes twenty."""
        asked = _Asked(self._nvml, self._handle)
        at = time.monotonic_ns()
        return ClockReading(
            at, asked("sm_clock_mhz", "ClockInfo", _SM_CLOCK), asked("reasons", "CurrentClocksEventReasons")
        )

    def memory(self) -> tuple[int | None, dict[int, int]]:
        """(bytes in use, whoever uses them; process number → bytes that it holds, as far as the driver tells).

        In another PID namespace than the driver's, its numbers are not those of this host's processes.
        """
        asked = _Asked(self._nvml, self._handle)
        used = asked("memory_used_bytes", "MemoryInfo")
        listed = asked("processes", "ComputeRunningProcesses") or ()
        held = {process.pid: process.usedGpuMemory for process in listed if process.usedGpuMemory}
        return None if used is None else used.used, held

    def settings(self) -> dict[str, Any]:
        """What does not change during a run; None where the driver does not say."""
        asked = _Asked(self._nvml, self._handle)
        ecc, mig = asked("ecc", "EccMode"), asked("mig", "MigMode")
        return {
            "name": asked("name", "Name"),
            "driver": self._nvml.nvmlSystemGetDriverVersion(),
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": None if mig is None else bool(mig[0]),
            "persistence": asked("persistence", "PersistenceMode"),
            "slowdown_c": asked("slowdown_c", "TemperatureThreshold", _SLOWDOWN_THRESHOLD),
            "pcie_width": asked("pcie_width", "CurrPcieLinkWidth"),
            "max_pcie_width": asked("max_pcie_width", "MaxPcieLinkWidth"),
        }


class _Asked:
    """Calls to NVML about one GPU. `refused` keeps the driver's reason for each call that failed."""

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml, self._handle = nvml, handle
        self.refused: dict[str, str] = {}

    def __call__(self, field: str, call: str, *args: object) -> Any:
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{call}")(self._handle, *args)
        except self._nvml.NVMLError as error:
            self.refused[field] = str(error)
            return None

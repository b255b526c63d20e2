"""GPUs through NVML: chosen by UUID, every call guarded, nothing changed.

A reading that the driver refuses is None, with the driver's reason beside it, so that "fine" and "not known" can be
told apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from types import TracebackType
from typing import Any

from specgate.contract.conditions import ClockReading, GpuProcess, GpuReading

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
        query = _Asked(self._nvml, self._handle)
        processes = query("processes", "ComputeRunningProcesses")
        drawing = query("graphics_processes", "GraphicsRunningProcesses")
        pids = None if processes is None else {p.pid for p in (*processes, *(drawing or ()))}
        memory = query("memory_total_bytes", "MemoryInfo")
        use = query("utilization_pct", "UtilizationRates")
        thermal, power = (
            query(f"{name}_violation_ns", "ViolationStatus", policy)
            for name, policy in (("thermal", _THERMAL), ("power", _POWER))
        )
        rows = query("rows_in_trouble", "RemappedRows")
        return GpuReading(
            uuid=self.uuid,
            processes=None if pids is None else tuple(map(self._owner, sorted(pids))),
            clock_event_reasons=query("clock_event_reasons", "CurrentClocksEventReasons"),
            thermal_violation_ns=None if thermal is None else thermal.violationTime,
            power_violation_ns=None if power is None else power.violationTime,
            sm_clock_mhz=query("sm_clock_mhz", "ClockInfo", _SM_CLOCK),
            max_sm_clock_mhz=query("max_sm_clock_mhz", "MaxClockInfo", _SM_CLOCK),
            power_mw=query("power_mw", "PowerUsage"),
            energy_mj=query("energy_mj", "TotalEnergyConsumption"),
            power_limit_mw=query("power_limit_mw", "EnforcedPowerLimit"),
            default_power_limit_mw=query("default_power_limit_mw", "PowerManagementDefaultLimit"),
            temperature_c=query("temperature_c", "Temperature", _GPU_SENSOR),
            utilization_pct=None if use is None else use.gpu,
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            ecc_uncorrected=query("ecc_uncorrected", "TotalEccErrors", _UNCORRECTED, _SINCE_DRIVER_LOAD),
            rows_in_trouble=None if rows is None else bool(rows[2] or rows[3]),
            unread=query.refused,
        )

    def clock(self) -> ClockReading:
        """The SM clock, what lowers it, and the energy: three calls, where `read` makes twenty."""
        query = _Asked(self._nvml, self._handle)
        return ClockReading(
            time.monotonic_ns(),
            query("sm_clock_mhz", "ClockInfo", _SM_CLOCK),
            query("reasons", "CurrentClocksEventReasons"),
            query("energy_mj", "TotalEnergyConsumption"),
        )

    def memory(self) -> tuple[int | None, dict[int, int]]:
        """(bytes in use, whoever uses them; process number → bytes that it holds, as far as the driver tells).

        In another PID namespace than the driver's, its numbers are not those of this host's processes.
        """
        query = _Asked(self._nvml, self._handle)
        used = query("memory_used_bytes", "MemoryInfo")
        listed = query("processes", "ComputeRunningProcesses") or ()
        by_process = {process.pid: process.usedGpuMemory for process in listed if process.usedGpuMemory}
        return None if used is None else used.used, by_process

    def settings(self) -> dict[str, Any]:
        """Settings that do not change during a run; None if the driver does not tell."""
        query = _Asked(self._nvml, self._handle)
        ecc, mig = query("ecc", "EccMode"), query("mig", "MigMode")
        return {
            "name": query("name", "Name"),
            "driver": self._nvml.nvmlSystemGetDriverVersion(),
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": None if mig is None else bool(mig[0]),
            "persistence": query("persistence", "PersistenceMode"),
            "slowdown_c": query("slowdown_c", "TemperatureThreshold", _SLOWDOWN_THRESHOLD),
            "pcie_width": query("pcie_width", "CurrPcieLinkWidth"),
            "max_pcie_width": query("max_pcie_width", "MaxPcieLinkWidth"),
        }


class GpuProbes:
    """Probes of several GPUs that are measured together, read as one: whatever is worst on any of them."""

    def __init__(self, uuids: Sequence[str | None], owner: Callable[[int], GpuProcess]) -> None:
        """Raises NvmlMissing where one of them is missing."""
        self._probes: list[GpuProbe] = []
        try:
            for uuid in uuids:
                self._probes.append(GpuProbe(uuid, owner))
        except NvmlMissing:
            self.close()
            raise

    def read(self) -> GpuReading:
        return worst_of([probe.read() for probe in self._probes])

    def clock(self) -> ClockReading:
        return slowest_of([probe.clock() for probe in self._probes])

    def memory(self) -> list[tuple[int | None, dict[int, int]]]:
        return [probe.memory() for probe in self._probes]

    def close(self) -> None:
        for probe in self._probes:
            probe.close()


def worst_of(readings: Sequence[GpuReading]) -> GpuReading:
    """One reading of several GPUs: the lowest clock, the highest temperature, everybody's processes, and so on.

    A field that one of them does not give is None. The UUID is the first's.
    """
    if len(readings) == 1:
        return readings[0]

    def of(field: str, joined: Callable[[Sequence[Any]], Any]) -> Any:
        values = [getattr(reading, field) for reading in readings]
        return None if any(value is None for value in values) else joined(values)

    def union(lists: Sequence[Sequence[GpuProcess]]) -> tuple[GpuProcess, ...]:
        by_pid = {process.pid: process for processes in lists for process in processes}
        return tuple(by_pid[pid] for pid in sorted(by_pid))

    def bits(values: Sequence[int]) -> int:
        return reduce(or_, values)

    return GpuReading(
        uuid=readings[0].uuid,
        processes=of("processes", union),
        clock_event_reasons=of("clock_event_reasons", bits),
        thermal_violation_ns=of("thermal_violation_ns", sum),
        power_violation_ns=of("power_violation_ns", sum),
        sm_clock_mhz=of("sm_clock_mhz", min),
        max_sm_clock_mhz=of("max_sm_clock_mhz", min),
        power_mw=of("power_mw", max),
        energy_mj=of("energy_mj", sum),
        power_limit_mw=of("power_limit_mw", min),
        default_power_limit_mw=of("default_power_limit_mw", max),
        temperature_c=of("temperature_c", max),
        utilization_pct=of("utilization_pct", min),
        memory_used_bytes=of("memory_used_bytes", max),
        memory_total_bytes=of("memory_total_bytes", min),
        ecc_uncorrected=of("ecc_uncorrected", sum),
        rows_in_trouble=of("rows_in_trouble", any),
        unread={field: f"{r.uuid}: {why}" for r in reversed(readings) for field, why in r.unread.items()},
    )


def slowest_of(clocks: Sequence[ClockReading]) -> ClockReading:
    """One reading of several GPUs' clocks: the lowest, all that lowers any of them, and the sum of their energies."""

    def of(field: str, joined: Callable[[Sequence[Any]], Any]) -> Any:
        values = [getattr(clock, field) for clock in clocks]
        return None if None in values else joined(values)

    reasons = of("event_reasons", lambda values: reduce(or_, values))
    return ClockReading(clocks[0].monotonic_ns, of("sm_mhz", min), reasons, of("energy_mj", sum))


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

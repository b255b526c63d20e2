"""A stand-in for `pynvml`: the functions, return types and error classes that specgate uses, on scripted GPUs.

It refuses what the real driver refuses: calls before `nvmlInit`, unknown UUIDs, and everything once the GPU is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST = 9, 12, 15
_TEXT = {
    UNINITIALIZED: "Uninitialized",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    NOT_FOUND: "Not Found",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    GPU_IS_LOST: "GPU is lost",
}


class NVMLError(Exception):
    """Has the driver's return code as `value` and the driver's text as its message."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _TEXT[self.value]


@dataclass
class Gpu:
    """A healthy, idle H200, unless told otherwise. The figures were read from a real one (driver 580)."""

    uuid: str = "GPU-5a1e0000-0000-4000-8000-000000000001"
    name: str = "NVIDIA H200"
    capability: tuple[int, int] | None = (9, 0)
    processes: list[int] = field(default_factory=list)
    graphics: list[int] = field(default_factory=list)
    reasons: int = 0x1
    violations_ns: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    sm_clock_mhz: int = 345
    max_sm_clock_mhz: int = 1980
    power_mw: int = 77_595
    energy_mj: int = 5_000_000_000
    power_limit_mw: int = 700_000
    default_power_limit_mw: int = 700_000
    temperature_c: int = 29
    slowdown_c: int = 89
    utilization_pct: int = 0
    memory_used: int = 644_939_776
    memory_total: int = 150_754_820_096
    ecc: int = 1
    ecc_uncorrected: int = 0
    remapped: tuple[int, int, int, int] = (0, 0, 0, 0)
    mig: int = 0
    persistence: int = 1
    pcie_width: int = 16
    refuses: dict[str, int] = field(default_factory=dict)
    """Call, without `nvmlDeviceGet` → the code that it fails with."""

    def busy(self, *pids: int) -> Gpu:
        """Make the GPU busy with these processes."""
        self.processes, self.reasons, self.sm_clock_mhz = list(pids), 0, 1980
        self.power_mw, self.utilization_pct, self.temperature_c = 420_000, 99, 51
        return self


def liar(uuid: str = "GPU-5a1e0000-0000-4000-8000-000000000001") -> Gpu:
    """A GPU whose calls all succeed and all return zero."""
    gpu = Gpu(uuid=uuid, name="", violations_ns={0: 0, 1: 0}, reasons=0, pcie_width=0, ecc=0, persistence=0)
    for name, value in vars(gpu).items():
        if isinstance(value, int):
            setattr(gpu, name, 0)
    return gpu


class Driver:
    """Goes into `sys.modules["pynvml"]`. With `lost`, every later call fails, as when a GPU falls off the bus."""

    NVMLError = NVMLError

    def __init__(self, gpus: Sequence[Gpu], *, init_error: int | None = None, version: str = "580.159.04") -> None:
        self.gpus, self.init_error, self.version = list(gpus), init_error, version
        self.open = 0
        self.lost = False

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._check()
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check()
        return self.version

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        self._check()
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        self._check()
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError(NOT_FOUND)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = _ANSWERS.get(name.removeprefix("nvmlDeviceGet"))
        if answer is None or not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def call(gpu: Gpu, *args: int) -> Any:
            self._check()
            if self.lost:
                raise NVMLError(GPU_IS_LOST)
            if (code := gpu.refuses.get(name.removeprefix("nvmlDeviceGet"))) is not None:
                raise NVMLError(code)
            return answer(gpu, *args)

        return call

    def _check(self) -> None:
        if not self.open:
            raise NVMLError(UNINITIALIZED)


def driver(capabilities: Mapping[str, tuple[int, int] | None]) -> Driver:
    """A driver with these GPUs: UUID → compute capability, None where the driver does not know it."""
    return Driver([Gpu(uuid=uuid, capability=capability) for uuid, capability in capabilities.items()], version="570.1")


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError(NOT_SUPPORTED)
    return value


def _violation(gpu: Gpu, policy: int) -> Any:
    if policy not in gpu.violations_ns:
        raise NVMLError(INVALID_ARGUMENT)
    return SimpleNamespace(referenceTime=0, violationTime=gpu.violations_ns[policy])


def _held(pids: Sequence[int]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in pids]


_ANSWERS: dict[str, Callable[..., Any]] = {
    "UUID": lambda g: g.uuid,
    "Name": lambda g: g.name,
    "CudaComputeCapability": lambda g: _known(g.capability),
    "ComputeRunningProcesses": lambda g: _held(g.processes),
    "GraphicsRunningProcesses": lambda g: _held(g.graphics),
    "CurrentClocksEventReasons": lambda g: g.reasons,
    "ViolationStatus": _violation,
    "ClockInfo": lambda g, kind: g.sm_clock_mhz,
    "MaxClockInfo": lambda g, kind: g.max_sm_clock_mhz,
    "PowerUsage": lambda g: g.power_mw,
    "TotalEnergyConsumption": lambda g: g.energy_mj,
    "EnforcedPowerLimit": lambda g: g.power_limit_mw,
    "PowerManagementDefaultLimit": lambda g: g.default_power_limit_mw,
    "Temperature": lambda g, sensor: g.temperature_c,
    "TemperatureThreshold": lambda g, kind: g.slowdown_c,
    "UtilizationRates": lambda g: SimpleNamespace(gpu=g.utilization_pct, memory=0),
    "MemoryInfo": lambda g: SimpleNamespace(
        total=g.memory_total, used=g.memory_used, free=g.memory_total - g.memory_used
    ),
    "EccMode": lambda g: [g.ecc, g.ecc],
    "TotalEccErrors": lambda g, kind, counter: g.ecc_uncorrected,
    "RemappedRows": lambda g: g.remapped,
    "MigMode": lambda g: [g.mig, g.mig],
    "PersistenceMode": lambda g: g.persistence,
    "CurrPcieLinkWidth": lambda g: g.pcie_width,
    "MaxPcieLinkWidth": lambda g: 16,
}

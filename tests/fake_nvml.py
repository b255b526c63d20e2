"""NVML on a machine that has the GPUs that a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace


class NVMLError(Exception):
    """What the driver's library raises for a question that a GPU does not answer."""


def driver(capabilities: Mapping[str, tuple[int, int] | None]) -> SimpleNamespace:
    """A driver with these GPUs, by UUID; None: it does not know. All else it refuses to say."""
    uuids = list(capabilities)

    def unknown(*_: object) -> object:
        raise NVMLError

    def capability(handle: int) -> tuple[int, int]:
        found = capabilities[uuids[handle]]
        if found is None:
            raise NVMLError
        return found

    unsaid = ("Name", "MemoryInfo", "ClockInfo", "MaxClockInfo", "EnforcedPowerLimit", "Temperature")
    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: uuids[handle],
        nvmlDeviceGetCudaComputeCapability=capability,
        nvmlDeviceGetCurrentClocksEventReasons=unknown,
        **{f"nvmlDeviceGet{name}": unknown for name in unsaid},
    )

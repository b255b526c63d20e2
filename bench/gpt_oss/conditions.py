"""The GPU's clock and power while something is timed, sampled by a thread."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from specgate.contract.conditions import GpuProcess, GpuReading, clock_events
from specgate.machine import inventory
from specgate.machine.nvml import GpuProbe, NvmlMissing

INTERVAL_S: Final = 0.05


@dataclass(slots=True)
class Conditions:
    """Readings, in the order in which they were taken; `missing`: why there are none."""

    readings: list[GpuReading] = field(default_factory=list)
    missing: str | None = None

    def summary(self) -> dict[str, Any]:
        """Medians, and every reason for a lower clock that was seen."""
        reasons = {name for r in self.readings for name in clock_events(r.clock_event_reasons or 0)}
        return {
            "sm_clock_mhz": median([r.sm_clock_mhz for r in self.readings]),
            "power_w": median([r.power_mw and r.power_mw / 1e3 for r in self.readings]),
            "temperature_c": median([r.temperature_c for r in self.readings]),
            "clock_events": sorted(reasons),
            "readings": len(self.readings),
            **({"missing": self.missing} if self.missing else {}),
        }


def median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@contextmanager
def watched() -> Iterator[Conditions]:
    """Readings while this is open."""
    found, done = Conditions(), threading.Event()
    try:
        probe = GpuProbe(inventory.visible_gpu_uuid(), lambda pid: GpuProcess(pid, "unseen"))
    except NvmlMissing as error:
        found.missing = str(error)
        yield found
        return

    def read() -> None:
        while not done.wait(INTERVAL_S):
            found.readings.append(probe.read())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        probe.close()

"""Memory that an engine's processes take, on the GPU and on the host."""

from __future__ import annotations

from pathlib import Path

from specgate.contract.conditions import GpuProcess
from specgate.machine.inventory import visible_gpu_uuid
from specgate.machine.nvml import GpuProbe, NvmlMissing


def device_bytes_in_use() -> int | None:
    """GPU memory in use, whoever uses it, in bytes; None where there is no GPU or the driver does not say."""
    uuid = visible_gpu_uuid()
    if uuid is None:
        return None
    try:
        with GpuProbe(uuid, lambda pid: GpuProcess(pid, "unseen")) as probe:
            return probe.read().memory_used_bytes
    except NvmlMissing:
        return None


def most_host_bytes(pid: int) -> int | None:
    """The most resident memory that process `pid` and its children of this moment have had, in bytes.

    None where the system does not say: Linux keeps it as VmHWM in /proc/PID/status.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return None
    peaks = [peak for member in family if (peak := _high_water_mark(member.pid)) is not None]
    return sum(peaks) or None


def _high_water_mark(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = next((line.split() for line in lines if line.startswith("VmHWM:")), None)
    return int(fields[1]) << 10 if fields else None  # the kernel writes kB and means KiB

"""The host: which one it is, how much of its CPUs others use, and who owns a process. Nothing is changed."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from specgate.contract.conditions import GpuProcess, HostReading
from specgate.machine.cpu_pace import work_ns
from specgate.machine.process_tree import family

MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid")
"""Files that name this installation or this hardware. A container image often has none of the first two."""


def identity() -> str:
    """16 hexadecimal digits that stay the same on this host over reboots and differ between hosts.

    They are the beginning of a SHA-256 over the first of `MACHINE_IDS` that can be read and holds anything, over the
    host name where none does, and over the architecture. The raw values cannot be read back from them, so the digits
    may be stored and shown.
    """
    named = next(filter(None, map(_content, MACHINE_IDS)), f"host name {platform.node()}")
    facts = ("specgate host identity", named, platform.system(), platform.machine())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _content(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class HostProbe:
    """Reads the host. "Ours" are one process (the harness, by its number) and everything that it has started; and of
    programs that ran before it, which listen on `ports` of this machine and are to be measured, the same.
    """

    def __init__(self, harness: int, ports: Sequence[int] = ()) -> None:
        self._roots = (harness, *listeners(ports))
        self._spent: dict[int, float] = {}
        """Process number → CPU seconds, for every process that is or was one of ours."""
        self._refresh()
        self._before = self._totals()

    def read(self) -> HostReading:
        """One reading. Its `other_cpu_share` covers the time since the previous reading, or since the probe was
        made.
        """
        self._refresh()
        before, now = self._before, self._totals()
        self._before = now
        at, busy, ours = (b - a for a, b in zip(before, now, strict=True))
        offered = at * len(usable_cpus())
        memory = psutil.virtual_memory()
        return HostReading(
            load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            other_cpu_share=min(1.0, max(0.0, (busy - ours) / offered)) if offered and busy else None,
            available_memory_bytes=memory.available,
            swap_used_bytes=psutil.swap_memory().used,
            work_ns=work_ns(),
        )

    def owner(self, pid: int) -> GpuProcess:
        """Owner of the process with number `pid`.

        One of ours stays ours after it has ended, because the driver lists it a little longer.
        """
        if pid in self._spent:
            return GpuProcess(pid, "ours")
        try:
            return GpuProcess(pid, "foreign", psutil.Process(pid).name())
        except psutil.NoSuchProcess:
            return GpuProcess(pid, "unseen")
        except psutil.AccessDenied:
            return GpuProcess(pid, "foreign")

    def _refresh(self) -> None:
        for process in (one for root in self._roots for one in family(root)):
            try:
                times = process.cpu_times()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            self._spent[process.pid] = times.user + times.system

    def _totals(self) -> tuple[float, float, float]:
        """Seconds: the time now, busy time of the usable CPUs, and CPU time of our processes."""
        usable = usable_cpus()
        busy = 0.0
        for cpu, times in enumerate(psutil.cpu_times(percpu=True)):
            if cpu in usable:
                # Guest time is already part of user time. Time spent waiting for a disk counts as idle.
                idle = times.idle + getattr(times, "iowait", 0.0)
                guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
                busy += sum(times) - idle - guest
        return time.monotonic(), busy, sum(self._spent.values())


def listeners(ports: Sequence[int]) -> list[int]:
    """The processes that listen on TCP ports of this machine; those that the user may not look into are left out."""
    if not ports:
        return []
    with suppress(psutil.AccessDenied, OSError):
        connections = psutil.net_connections(kind="tcp")
        return sorted(
            {
                c.pid
                for c in connections
                if c.status == psutil.CONN_LISTEN and c.pid and c.laddr and c.laddr.port in ports
            }
        )
    return []


def root_of(pids: Sequence[int]) -> int | None:
    """The one of `pids` that has started all others, as the first of a server's workers has; None where none has."""
    for pid in pids:
        with suppress(psutil.Error):
            if {process.pid for process in family(pid)}.issuperset(pids):
                return pid
    return None


def name_of(pid: int | None) -> str | None:
    """The name of a process; None where it has ended, or may not be seen."""
    with suppress(psutil.Error):
        return psutil.Process(pid).name() if pid is not None else None
    return None


def usable_cpus() -> set[int]:
    """Indices of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def frequency_governors() -> set[str]:
    """The frequency governors of the usable CPUs; empty where the host does not show them, as in most virtual
    machines.
    """
    governors = set()
    for cpu in usable_cpus():
        try:
            governors.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor").read_text().strip())
        except OSError:
            continue
    return governors


def cpu_quota() -> float | None:
    """Number of CPUs whose time the control group allows; None if there is no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def cache_bytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """The last-level caches of all CPUs together, in bytes; None where the host does not show them."""
    caches: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
        except (OSError, ValueError):
            continue
        if size.endswith("K") and size[:-1].isdecimal():
            caches[level, shared] = int(size[:-1]) << 10
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None

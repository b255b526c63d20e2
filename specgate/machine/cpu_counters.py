"""The kernel's counters of CPU time, read right before and right after a block. Nothing is changed.

They tell whether the engine had the CPUs to itself, for blocks of any length. What a kernel or a container hides is
left out, with the reason beside it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from specgate.contract.conditions import CpuUse
from specgate.machine.host import cpu_quota, usable_cpus
from specgate.machine.process_tree import process_tree

TICK_NS: Final = 10_000_000
"""The unit of /proc/stat: a hundredth of a second on every Linux that Python runs on (USER_HZ)."""
_BUSY: Final = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal in a line of /proc/stat. Guest time is already part of user time."""
_STEAL: Final = 7
_CPUCLOCK_SCHED: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters at one moment. All only grow. Nanoseconds; None where `unread` has the reason.

    `cpus`, `offered`: as in `CpuUse`.
    `harness`, `engine`, `ours`: numbers of the harness's process, of the engine's processes, and of all that the
        harness has started, itself included; None where the kernel does not show them.
    `busy`, `stolen`: by CPU. `spent`: CPU time by process of `ours`.
    `threads`: the harness's first thread and those of the engine → (time it ran, time it waited for a CPU).
    """

    at_ns: int
    cpus: int
    offered: float
    harness: int
    engine: Sequence[int]
    ours: Sequence[int] | None
    busy: Mapping[int, int] | None = None
    stolen: Mapping[int, int] | None = None
    spent: Mapping[int, int] | None = None
    threads: Mapping[int, tuple[int, int]] | None = None
    pressure: int | None = None
    throttled: int | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


class CpuProbe:
    """Reads the counters around the blocks of one run, for the calling thread and an engine's process.

    `proc`, `cgroup`: where the kernel shows them. `spent`: process number → its CPU time in nanoseconds.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        spent: Callable[[int], int] | None = None,
        harness: int | None = None,
    ) -> None:
        self._proc, self._cgroup, self._spent = proc, cgroup, spent or cpu_time_ns
        self._harness = os.getpid() if harness is None else harness
        self._cpus = usable_cpus()
        self._quota = cpu_quota()
        self._offered = min(float(len(self._cpus)), self._quota or math.inf)

    def read(self, engine: int, idle: Sequence[int] = ()) -> Counters:
        """The counters now, before a block. `engine`: the number of the engine's process. `idle`: those of other
        engines, which have nothing to do meanwhile: their CPU time counts as others'.
        """
        unread: dict[str, str] = {}
        ours = asked(unread, "ours_ns", lambda: process_tree(self._harness, idle, self._proc))
        try:
            of_engine = process_tree(engine, (), self._proc)
        except ValueError:  # what it has started is not shown
            of_engine = [engine]
        return self._counters(ours, of_engine, unread)

    def read_again(self, before: Counters) -> Counters:
        """The counters now, after the block that `before` was read for. Processes are not looked for again."""
        unread = {"ours_ns": before.unread["ours_ns"]} if before.ours is None else {}
        return self._counters(before.ours, before.engine, unread)

    def _counters(self, ours: Sequence[int] | None, engine: Sequence[int], unread: dict[str, str]) -> Counters:
        at = time.monotonic_ns()
        threads = asked(unread, "waited_ns", lambda: dict(self._threads(engine)))
        stat = asked(unread, "busy_ns", self._stat)
        return Counters(
            at_ns=at,
            cpus=len(self._cpus),
            offered=self._offered,
            harness=self._harness,
            engine=engine,
            ours=ours,
            busy=None if stat is None else {cpu: busy for cpu, (busy, _) in stat.items()},
            stolen=None if stat is None else {cpu: stolen for cpu, (_, stolen) in stat.items()},
            spent=None if ours is None else asked(unread, "ours_ns", lambda: dict(self._spent_by(ours))),
            threads=threads,
            pressure=asked(unread, "pressure_ns", self._pressure),
            throttled=asked(unread, "throttled_ns", self._throttled) if self._quota else None,
            unread=unread,
        )

    def _stat(self) -> dict[int, tuple[int, int]]:
        """Usable CPU → (time it was busy or stolen, time it was stolen)."""
        times = {}
        for line in (self._proc / "stat").read_text().splitlines():
            name, *values = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in self._cpus:
                ticks = [int(value) for value in values]
                times[int(name[3:])] = (sum(ticks[i] for i in _BUSY) * TICK_NS, ticks[_STEAL] * TICK_NS)
        if not any(busy for busy, _ in times.values()):
            raise ValueError(f"{self._proc / 'stat'} has no busy time of a usable CPU")
        return times

    def _spent_by(self, processes: Sequence[int]) -> Iterator[tuple[int, int]]:
        for pid in processes:
            try:
                yield pid, self._spent(pid)
            except OSError:  # it has ended
                continue

    def _threads(self, engine: Sequence[int]) -> Iterator[tuple[int, tuple[int, int]]]:
        # A process has one such file for its first thread, and one for every thread.
        file = self._proc / str(self._harness) / "schedstat"
        ran, waited = ran_and_waited(file)
        if not ran:  # of the thread that asks
            raise ValueError(f"{file}: the kernel keeps no account of waiting")
        yield self._harness, (ran, waited)
        for pid in engine:
            tasks = self._proc / str(pid) / "task"
            try:
                listed = os.listdir(tasks)
            except (FileNotFoundError, ProcessLookupError):
                if pid == engine[0]:
                    raise
                continue  # it has ended, such as a compiler that a server had started; it waits no more
            for tid in listed:
                try:
                    yield int(tid), ran_and_waited(tasks / tid / "schedstat")
                except (FileNotFoundError, ProcessLookupError):  # it has just ended
                    continue

    def _pressure(self) -> int:
        for line in (self._proc / "pressure" / "cpu").read_text().splitlines():
            kind, *values = line.split()
            if kind == "some":
                return 1000 * int(dict(value.split("=") for value in values)["total"])
        raise ValueError(f"{self._proc / 'pressure' / 'cpu'} has no line `some`")

    def _throttled(self) -> int:
        lines = (self._cgroup / "cpu.stat").read_text().splitlines()
        return 1000 * int(dict(line.split() for line in lines)["throttled_usec"])


def ran_and_waited(file: Path) -> tuple[int, int]:
    """Times that a thread has run, and has waited for a CPU while it could have run."""
    ran, waited, _ = map(int, file.read_text().split())
    return ran, waited


def asked(unread: dict[str, str], name: str, read: Callable[[], T]) -> T | None:
    """Call `read` and return its result; None if it fails, with the reason in `unread` under `name`."""
    try:
        return read()
    except (OSError, ValueError, LookupError) as error:
        unread[name] = why(error)
        return None


def cpu_time_ns(pid: int) -> int:
    """The CPU time of a process, its ended threads included. Raises OSError where there is no such process."""
    # The clock of another process's CPU time, as clock_getcpuclockid(3) makes it. Python has no such function.
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)


def between(before: Counters, after: Counters) -> CpuUse:
    """By how much the counters grew. A CPU, process or thread that only one of the two readings has counts from its own
    beginning.
    """
    grown = {pid: ns - (before.spent or {}).get(pid, 0) for pid, ns in (after.spent or {}).items()}
    threads = {
        tid: (ran - old[0], waited - old[1])
        for tid, (ran, waited) in (after.threads or {}).items()
        if (old := (before.threads or {}).get(tid, (0, 0)))
    }
    of_engine = [ran + waited for tid, (ran, waited) in threads.items() if tid != after.harness]
    unread = {**before.unread, **after.unread}

    def read(name: str, value: int) -> int | None:
        return None if name in unread else value

    return CpuUse(
        wall_ns=after.at_ns - before.at_ns,
        cpus=after.cpus,
        offered=after.offered,
        busy_ns=read("busy_ns", sum(growth(before.busy, after.busy))),
        ours_ns=read("ours_ns", sum(grown.values())),
        stolen_ns=read("busy_ns", max(growth(before.stolen, after.stolen), default=0)),
        wanted_ns=read("waited_ns", sum(of_engine)),
        waited_ns=read("waited_ns", max((waited for _, waited in threads.values()), default=0)),
        pressure_ns=read("pressure_ns", (after.pressure or 0) - (before.pressure or 0)),
        throttled_ns=None if after.throttled is None else after.throttled - (before.throttled or 0),
        unread=unread,
    )


def growth(before: Mapping[int, int] | None, after: Mapping[int, int] | None) -> Iterator[int]:
    """The growth of a counter that every CPU has, for the CPUs of both readings. One that went back counts as 0: time
    stolen and time idle are corrected now and then.
    """
    return (max(0, ns - (before or {})[cpu]) for cpu, ns in (after or {}).items() if cpu in (before or {}))


def why(error: Exception) -> str:
    """Reason that a counter could not be read, in a few words."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return f"no field {error}" if isinstance(error, KeyError) else str(error)

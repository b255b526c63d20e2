"""Memory that a tree of processes holds, on the host and on the GPU. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from specgate.contract.conditions import GpuProcess
from specgate.contract.samples.memory import EngineMemory, MemoryUse
from specgate.contract.types import fields_of
from specgate.machine.nvml import GpuProbes, NvmlMissing
from specgate.machine.process_tree import family


class MemoryProbe:
    """Reads memory in use. `uuids`: the GPUs that are measured. Of several, the fullest is told: it is the one that a
    larger model would not fit on.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        self._gpus: GpuProbes | None = None
        with suppress(NvmlMissing):  # what the others hold is not what all of them hold
            self._gpus = GpuProbes(uuids, lambda pid: GpuProcess(pid, "unseen"))

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._gpus:
            self._gpus.close()

    def read(self, engine: int, reported: EngineMemory | None = None) -> MemoryUse:
        """Measure the memory in use now.

        `engine`: the number of the engine's process.
        `reported`: the engine's own account. If it names a process, that one's tree is measured.
        """
        reported = EngineMemory(process=engine) if reported is None else reported
        root = None if reported.process is None else outside(engine, reported.process)
        tree = {} if root is None else resident_bytes(root)
        readings = self._gpus.memory() if self._gpus else []
        used = [device for device, _ in readings if device is not None]
        mine = [sum(size for pid, size in by_process.items() if pid in tree) for _, by_process in readings]
        return MemoryUse(
            **fields_of(EngineMemory, reported),
            host_bytes=sum(tree.values()) or None,
            gpu_bytes=max(mine, default=0) or None,
            device_bytes=max(used) if readings and len(used) == len(readings) else None,
        )


def outside(engine: int, process: int) -> int | None:
    """The number that `process` has here, as an engine's process gives it. In a sandbox processes have other numbers,
    in the order of which nothing can be told; None for one that has ended.
    """
    numbers = {}
    for one in family(engine):
        numbers[one.pid] = own_numbers(one.pid)
    if all(len(known) < 2 for known in numbers.values()):
        return process
    return next((here for here, known in numbers.items() if len(known) > 1 and known[-1] == process), None)


def own_numbers(pid: int) -> list[int]:
    """The numbers of a process, from here to the innermost namespace; [] where the kernel does not tell."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return list(map(int, line.split()[1:]))
    return []


def resident_bytes(root: int) -> dict[int, int]:
    """Process number → resident memory in bytes, for process `root` and all that it has started; {} where it has
    ended.
    """
    sizes = {}
    for process in family(root):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            sizes[process.pid] = process.memory_info().rss
    return {pid: size for pid, size in sizes.items() if size}

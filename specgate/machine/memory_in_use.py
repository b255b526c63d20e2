"""How much memory a tree of processes holds, on the host and on the GPU. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

import psutil

from specgate.core.conditions import GpuProcess
from specgate.core.memory import EngineMemory, MemoryUse
from specgate.machine.nvml import GpuProbe, NvmlMissing


class MemoryProbe:
    """Reads memory in use. `uuid`: the GPU that is measured; None where there is none."""

    def __init__(self, uuid: str | None) -> None:
        self._gpu: GpuProbe | None = None
        if uuid is not None:
            with suppress(NvmlMissing):
                self._gpu = GpuProbe(uuid, lambda pid: GpuProcess(pid, "unseen"))

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._gpu is not None:
            self._gpu.close()

    def read(self, engine: int, told: EngineMemory | None = None) -> MemoryUse:
        """The memory in use now. `engine`: the number of the engine's process. `told`: what the engine says of itself;
        where it says anything, its processes are those that it names.
        """
        told = EngineMemory(process=engine) if told is None else told
        tree = {} if told.process is None else resident_bytes(told.process)
        device, held = self._gpu.memory() if self._gpu is not None else (None, {})
        mine = [found for pid in tree if (found := held.get(pid)) is not None]
        return MemoryUse(
            process=told.process,
            host_bytes=sum(tree.values()) or None,
            gpu_bytes=sum(mine) or None,
            device_bytes=device,
            kv_tokens=told.kv_tokens,
            kv_bytes=told.kv_bytes,
            kv_beside=told.kv_beside,
        )


def resident_bytes(root: int) -> dict[int, int]:
    """Process number → resident memory in bytes, for process `root` and all that it has started; {} where it has
    ended.
    """
    return {pid: size for pid, size in _resident(root) if size}


def _resident(root: int) -> Iterator[tuple[int, int]]:
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(root)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                yield process.pid, process.memory_info().rss

"""Speed of reading the GPU's memory, which limits every step that is bound by it."""

from __future__ import annotations

from typing import Any, Final

import torch

from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.kernels.read_memory import WARP_WORDS, ReadMemory
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.contract.protocols import MemoryReads
from specgate.errors import EnvironmentRefused

SIZES: Final = (8 << 30, 4 << 30)
"""Bytes to read: the first of these that fits. Both are far larger than any cache, and take much longer to read than a
launch costs.
"""
WARM_UP: Final = 3


def read_memory(repeats: int) -> MemoryReads:
    """Read the memory of the GPU that CUDA shows first `repeats` times, each between two events.

    The words are random, as a GPU may move zeros for less. Raises EnvironmentRefused where there is no GPU or too
    little of its memory is free.
    """
    device = first_gpu()
    free = free_bytes(device)
    size = next((s for s in SIZES if s + s // WARP_WORDS < free), None)
    if size is None:
        raise EnvironmentRefused(
            f"{device}: {free / 1e9:.2f} GB free, but reading takes {SIZES[-1] / 1e9:.2f} GB", hint="free some memory"
        )
    words = torch.empty(size // 4, dtype=torch.int32, device=device).random_()
    out = torch.empty(size // 4 // WARP_WORDS, dtype=torch.int32, device=device)
    kernel, stream = ReadMemory(), Stream()
    event_type: Any = torch.cuda.Event
    events = [event_type(enable_timing=True) for _ in range(repeats + 1)]
    with stream.current():
        for _ in range(WARM_UP):
            kernel(out, words)
        events[0].record(stream.torch)
        for event in events[1:]:
            kernel(out, words)
            event.record(stream.torch)
        stream.wait()
    return MemoryReads(
        device=torch.cuda.get_device_name(),
        gpu_uuid=f"GPU-{torch.cuda.get_device_properties(device).uuid}",
        size=size,
        elapsed_ns=tuple(round(events[i].elapsed_time(events[i + 1]) * 1e6) for i in range(repeats)),
    )

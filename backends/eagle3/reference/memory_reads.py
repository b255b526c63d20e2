"""Measure how fast torch's threads read the host's memory."""

from __future__ import annotations

import time
from typing import Final

import torch

from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.contract.protocols import MemoryReads
from specgate.errors import EnvironmentRefused

SIZE: Final = 2 << 30
"""Bytes. More than the caches of any current host hold."""
WARM_UP: Final = 2


def read_memory(repeats: int, size: int = SIZE) -> MemoryReads:
    """Sum up `size` bytes of random numbers `repeats` times, with the threads that the engine decodes with.

    Raises EnvironmentRefused where that much memory is not free.
    """
    free = free_bytes(torch.device("cpu"))
    if size > free:
        raise EnvironmentRefused(
            f"{free / 1e9:.2f} GB of memory free, but reading takes {size / 1e9:.2f} GB", hint="free some memory"
        )
    values = torch.rand(size // 4)
    elapsed = []
    for _ in range(WARM_UP + repeats):
        began = time.perf_counter_ns()
        values.sum()
        elapsed.append(time.perf_counter_ns() - began)
    return MemoryReads("cpu", None, size, tuple(elapsed[WARM_UP:]))

"""Timing of memory reads, and of launches whose input never lies in the cache.

Many launches are captured in one CUDA graph. Their inputs take turns, and together are larger than the L2 cache. The
result is the median over replays. Events are recorded around a whole replay, so that what they cost is shared by all
launches.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.engine.decode_run import captured
from specgate.backends.eagle3.cupy.kernels.read_memory import WARP_WORDS, ReadMemory
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.contract.protocols import MemoryReads
from specgate.errors import EnvironmentRefused

SIZES: Final = (8 << 30, 4 << 30)
"""Bytes to read: the first that fits. Both are far larger than any cache, and outlast what a launch costs."""
READ_WARM_UP: Final = 3


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
    with stream.current():
        each = elapsed_ms(lambda: kernel(out=out, words=words), READ_WARM_UP, repeats, stream)
    return MemoryReads(
        device=torch.cuda.get_device_name(),
        gpu_uuid=f"GPU-{torch.cuda.get_device_properties(device).uuid}",
        size=size,
        elapsed_ns=tuple(round(ms * 1e6) for ms in each),
    )


TIMES_L2: Final = 3
"""How many times larger than the L2 cache the inputs are. Once would not do: a replacement policy may keep some of what
it has seen.
"""
LAUNCHES: Final = 24
"""Fewest launches of a graph."""
WARM_UP: Final = 2
REPLAYS: Final = 15
READS: Final = 20


@dataclass(frozen=True, slots=True)
class Timing:
    """`latency_us`: microseconds per launch, the median over replays; `spread`: between quartiles, as a share."""

    latency_us: float
    spread: float


def inputs_to_rotate(size: int, l2_bytes: int) -> int:
    """Return how many inputs of `size` bytes must take turns, so that none is read again from the cache."""
    return max(2, -(-TIMES_L2 * l2_bytes // size))


def time_launches(launch: Callable[[int], object], inputs: int, stream: Stream) -> Timing:
    """Time `launch(i)`, which must launch on the i-th of `inputs` inputs on the current stream, and neither wait nor
    allocate.

    The inputs take turns. They must not be zeros, because a GPU may move zeros for less.
    """
    count = -(-LAUNCHES // inputs) * inputs

    def launches() -> None:
        for i in range(count):
            launch(i % inputs)

    graph = captured(launches, stream)
    with stream.current():
        each = [ms * 1e3 / count for ms in elapsed_ms(lambda: graph.launch(stream.cupy), WARM_UP, REPLAYS, stream)]
    low, median, high = statistics.quantiles(each, n=4)
    return Timing(median, (high - low) / median)


def elapsed_ms(launch: Callable[[], object], warm_up: int, repeats: int, stream: Stream) -> list[float]:
    """Milliseconds of each of `repeats` launches on `stream`, which is current, behind `warm_up` more."""
    made: Any = torch.cuda.Event  # torch gives no types
    events = [made(enable_timing=True) for _ in range(repeats + 1)]
    for _ in range(warm_up):
        launch()
    events[0].record(stream.torch)
    for event in events[1:]:
        launch()
        event.record(stream.torch)
    stream.wait()
    return [events[i].elapsed_time(events[i + 1]) for i in range(repeats)]


def read_bandwidth() -> float:
    """Bytes per second at which this GPU's memory can be read: the ceiling of every launch that is bound by it."""
    reads = read_memory(READS)
    return reads.size / statistics.median(reads.elapsed_ns) * 1e9

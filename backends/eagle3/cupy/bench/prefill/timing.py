"""Duration of a part of a prefill, and the GPU's clock and power meanwhile.

A part takes microseconds to a second, and its operands are what a prefill has written just before. So it is simply
repeated between events, without a graph. The host runs ahead; while the GPU works, it asks the driver for the clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from specgate.backends.eagle3.cupy.bench.timing import timed_event
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.contract.conditions import GpuProcess, GpuReading
from specgate.machine.inventory import visible_gpu_uuid
from specgate.machine.nvml import GpuProbe, NvmlMissing

Read = Callable[[], GpuReading | None]
ENOUGH_S: Final = 0.3
"""Seconds that a part is repeated for: the driver averages power over about as long."""
FEWEST: Final = 4
MOST: Final = 300
ASKED_EVERY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class PartTime:
    """`us`: microseconds, the median; `spread`: between the quartiles, as a share of it. Clock and power: medians, None
    where the driver does not tell or the part was over too soon to ask.
    """

    us: float
    spread: float
    sm_clock_mhz: float | None
    power_w: float | None


@contextmanager
def gpu_reader() -> Iterator[Read]:
    """Reads the GPU that is measured; None where there is no NVML."""
    try:
        probe = GpuProbe(visible_gpu_uuid(), lambda pid: GpuProcess(pid, "unseen"))
    except NvmlMissing:
        yield lambda: None
        return
    with probe:
        yield probe.read


def time_part(run: Callable[[], object], stream: Stream, read: Read) -> PartTime:
    """Time `run`, which launches on the current stream and does not wait."""
    with stream.current():
        run()  # plans, kernels and memory are made
        once = sum(repeated(run, 2, stream, lambda: None)[0]) / 2
        count = min(MOST, max(FEWEST, math.ceil(ENOUGH_S * 1e6 / once)))
        each, seen = repeated(run, count, stream, read)
    low, median, high = statistics.quantiles(each, n=4)
    clocks = [reading.sm_clock_mhz for reading in seen if reading.sm_clock_mhz is not None]
    powers = [reading.power_mw / 1e3 for reading in seen if reading.power_mw is not None]
    return PartTime(median, (high - low) / median, middle(clocks), middle(powers))


def repeated(run: Callable[[], object], count: int, stream: Stream, read: Read) -> tuple[list[float], list[GpuReading]]:
    """Microseconds of each of `count` runs, and readings of the GPU from the second half of them."""
    events = [timed_event() for _ in range(count + 1)]
    events[0].record(stream.torch)
    for event in events[1:]:
        run()
        event.record(stream.torch)
    seen = list[GpuReading]()
    while not events[-1].query():
        if events[count // 2].query() and (reading := read()) is not None:
            seen.append(reading)
        time.sleep(ASKED_EVERY_S)
    return [events[i].elapsed_time(events[i + 1]) * 1e3 for i in range(count)], seen


def middle(values: list[float] | list[int]) -> float | None:
    return float(statistics.median(values)) if values else None


def product_flops(stream: Stream, read: Read, side: int = 8192) -> float:
    """FLOP/s of cuBLAS's square bfloat16 product of normal numbers: the ceiling of every part that computes."""
    a, b = (torch.empty(side, side, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / time_part(lambda: torch.mm(a, b.t(), out=out), stream, read).us * 1e6

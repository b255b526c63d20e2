"""Memory of a cell, and what speculation adds to it.

A serving engine takes a fixed share of the GPU, and gives its KV cache what is left of that. Its peak is then the same
with and without speculation by construction. What speculation costs shows in the capacity of the KV cache: the draft's
weights, its own keys and values and its CUDA graphs take room from it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate.contract import BASELINE, Block, Cell, CellResult, Value
from specgate.contract.samples.memory import MemoryUse

PEAKS: Final = {
    "peak_gpu_memory_bytes": "gpu_bytes",
    "peak_device_memory_bytes": "device_bytes",
    "peak_host_memory_bytes": "host_bytes",
}
"""Metric → the field of `MemoryUse` of which it is the largest."""
EXTRA: Final = {"extra_gpu_memory_bytes": "peak_gpu_memory_bytes", "extra_host_memory_bytes": "peak_host_memory_bytes"}
"""Metric → the peak of which it is the difference to the baseline's."""
GROWTHS: Final = {"gpu_memory_growth_bytes": "gpu_bytes", "host_memory_growth_bytes": "host_bytes"}
"""Metric → the field of `MemoryUse` that it is the growth of."""
LEAST_READINGS: Final = 6
"""Blocks of one process from which on a growth is told: two in each third."""


SIZES: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size_in_words(size: float) -> str:
    """Bytes as text: 1.20 GiB, 512 MiB, 12 B."""
    for unit, factor in SIZES:
        if abs(size) >= factor:
            return f"{size / factor:,.{2 if unit == 'GiB' else 0}f} {unit}"
    return f"{size:,.0f} B"


def with_memory(cells: Sequence[CellResult], blocks: Sequence[Block]) -> tuple[CellResult, ...]:
    """`cells` with the memory that their measured blocks saw, and spec cells with what they take more than their
    baseline. Cells of runs that recorded none stay as they are.
    """
    uses: dict[Cell, list[MemoryUse]] = defaultdict(list)
    by_process: dict[Cell, dict[tuple[int, int | None], list[MemoryUse]]] = defaultdict(lambda: defaultdict(list))
    for block in blocks:
        if not block.warmup and block.memory is not None:
            uses[block.cell].append(block.memory)
            by_process[block.cell][block.worker_generation, block.memory.process].append(block.memory)
    used = {
        cell: {value.metric: value for value in (*used_by(mine), *growths(list(by_process[cell].values())))}
        for cell, mine in uses.items()
    }

    def extended(result: CellResult) -> CellResult:
        cell, baseline = result.cell, Cell(result.cell.point, BASELINE)
        if result.status == "failed" or cell not in used:
            return result
        more = dict(used[cell])
        if cell.role.speculative and baseline in used:
            apart = processes(uses[cell]).isdisjoint(processes(uses[baseline]))
            sized_alone = not any(use.kv_beside for use in (*uses[cell], *uses[baseline]))
            extra = beside(used[cell], used[baseline], apart=apart, sized_alone=sized_alone)
            more |= {value.metric: value for value in extra}
        return replace(result, values={**result.values, **more})

    return tuple(map(extended, cells))


def processes(uses: Sequence[MemoryUse]) -> set[int]:
    """The processes that a cell's blocks ran in, as far as they are known."""
    return {use.process for use in uses if use.process is not None}


def used_by(uses: Sequence[MemoryUse]) -> Iterator[Value]:
    """The figures of one cell. A capacity is the least that any of its blocks had."""
    for metric, field in PEAKS.items():
        known = [size for use in uses if (size := getattr(use, field)) is not None]
        if known:
            yield Value(metric, float(max(known)), "max", len(known))
    tokens = [use.kv_tokens for use in uses if use.kv_tokens is not None]
    if tokens:
        yield Value("kv_capacity_tokens", float(min(tokens)), "min", len(tokens))
    sizes = [use.kv_bytes for use in uses if use.kv_bytes is not None]
    if sizes:
        yield Value("kv_cache_bytes", float(min(sizes)), "min", len(sizes))


def growths(processes: Sequence[Sequence[MemoryUse]]) -> Iterator[Value]:
    """The growth of what a process held, in bytes: the median reading of the last third of its blocks less that of the
    first third; the largest of any process. None where no process has LEAST_READINGS. Readings in running order.
    """
    for metric, field in GROWTHS.items():
        of_each = [[size for use in uses if (size := getattr(use, field)) is not None] for uses in processes]
        known = [sizes for sizes in of_each if len(sizes) >= LEAST_READINGS]
        grown = [
            statistics.median(sizes[-(len(sizes) // 3) :]) - statistics.median(sizes[: len(sizes) // 3])
            for sizes in known
        ]
        if grown:
            yield Value(metric, float(max(grown)), "thirds", max(map(len, known)))


def beside(
    spec: Mapping[str, Value], baseline: Mapping[str, Value], *, apart: bool, sized_alone: bool
) -> Iterator[Value]:
    """Yield the memory that a spec cell takes more than its baseline.

    `apart`: they ran in processes of their own. In one process both roles hold the same memory, and a difference says
    nothing.
    `sized_alone`: neither KV cache was sized by what another server had left, as SGLang does. Such a difference shows
        the order in which they started, not the draft.
    """
    for metric, peak in EXTRA.items():
        a, b = (figures.get(peak) for figures in (spec, baseline))
        if apart and a is not None and b is not None and a.value is not None and b.value is not None:
            yield Value(metric, a.value - b.value, "difference", min(a.n, b.n))
    a, b = (figures.get("kv_capacity_tokens") for figures in (spec, baseline))
    if apart and sized_alone and a is not None and b is not None and a.value is not None and b.value:
        yield Value("kv_capacity_loss", 1 - a.value / b.value, "value", min(a.n, b.n))

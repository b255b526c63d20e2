"""Memory of a run's cells, in sentences and as a table: baseline beside speculation, with the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.machine.memory import size_in_words
from specgate.contract import CellResult, Run, Value
from specgate.reports.common import figures
from specgate.reports.common.figures import NONE
from specgate.reports.common.machine import gpus
from specgate.reports.common.parts import Table

ONE: Final = "of the GPU"
PEAKS: Final = (
    ("peak_gpu_memory_bytes", "extra_gpu_memory_bytes", ONE),
    ("peak_device_memory_bytes", None, f"{ONE}, whoever used it"),
    ("peak_host_memory_bytes", "extra_host_memory_bytes", "of the host"),
)
"""(peak, what it is more than the baseline's, whose memory it is). A sentence has the first that is known."""
METRICS: Final = (*(metric for metric, _, _ in PEAKS), "kv_capacity_tokens", "kv_cache_bytes")
EXTRA: Final = ("extra_gpu_memory_bytes", "extra_host_memory_bytes")
LOSS: Final = "kv_capacity_loss"
READ: Final = (
    "Read when each block had just been answered; the largest reading counts. An engine that takes a fixed share of "
    "the GPU holds as much with speculation as without: what the draft takes is then missing in its KV cache. Where "
    "several GPUs share the target, memory of the GPU is that of one of them: the fullest."
)


def sentences(run: Run) -> Iterator[str]:
    """One sentence per point whose blocks recorded their memory."""
    points = list(dict.fromkeys(r.cell.point for r in run.cells))
    for point in points:
        sentence = "; ".join(in_words([r for r in run.cells if r.cell.point == point], gpus(run, point.key)))
        if sentence:
            where = f"{cell_name(point.key, run.scenarios)}: " if len(points) > 1 else ""
            yield f"{where}memory: {sentence}"


def in_words(results: list[CellResult], count: int = 1) -> Iterator[str]:
    """The peak of every role with what speculation adds, then the capacity of every role with what it loses. `count`:
    how many GPUs share the target.
    """
    for peak, extra, whose in [known for known in PEAKS if any(known[0] in r.values for r in results)][:1]:
        peaks = [f"{r.cell.role_name} {figures.of(r, peak)}{added(r, extra)}" for r in results if peak in r.values]
        yield f"{', '.join(peaks)} {whose.replace(ONE, f'per GPU (of {count})') if count > 1 else whose}"
    capacities = [
        f"{r.cell.role_name} {figures.of(r, 'kv_capacity_tokens')}{lost(r.values.get(LOSS))}"
        for r in results
        if "kv_capacity_tokens" in r.values
    ]
    if capacities:
        yield f"KV cache for {', '.join(capacities)} tokens"


def added(result: CellResult, metric: str | None) -> str:
    extra = signed(result.values.get(metric or ""))
    return f" ({extra})" if extra != NONE else ""


def lost(loss: Value | None) -> str:
    return f" ({-100 * loss.value:+.1f} %)" if loss is not None and loss.value is not None else ""


def signed(extra: Value | None) -> str:
    """A difference with its sign: +1.20 GiB; a dash where there is none."""
    if extra is None or extra.value is None:
        return NONE
    return ("+" if extra.value >= 0 else "-") + size_in_words(abs(extra.value))


def table(run: Run) -> Table:
    """One row per cell that recorded its memory."""
    head = (
        *("cell", "GPU", "whole GPU", "host", "KV cache, tokens", "KV cache"),
        *("more on the GPU", "more on the host", "capacity lost"),
    )
    rows = [
        [
            cell_name(result.cell.key, run.scenarios),
            *(figures.of(result, metric) for metric in METRICS),
            *(signed(result.values.get(metric)) for metric in EXTRA),
            figures.of(result, LOSS),
        ]
        for result in run.cells
        if any(metric in result.values for metric in METRICS)
    ]
    return Table(head, rows)

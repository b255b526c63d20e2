"""Find reasons that a trace cannot be one of a stored run's cell. Where it cannot, what shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from specgate.analysis.traces.recording import Recording
from specgate.analysis.traces.steps import Loop
from specgate.contract import BlockTrace, Cell, Run

SHARED: Final = 0.5
"""The least share of kernel names that two traces of one engine, model and role have in common."""


def objections(recording: Recording, loop: Loop, run: Run, cell: Cell, stored: BlockTrace | None) -> Iterator[str]:
    """Reasons that the trace is not one of `cell`; none if it may be.

    `stored`: the cell's own traced block, where the run has one.
    """
    yield from other_device(recording, run)
    yield from other_time(recording, run)
    window = loop.window
    if window.tokens is not None and window.tokens != cell.role.k + 1:
        yield f"its steps run over {window.tokens} tokens of a request, those of {cell.role} over {cell.role.k + 1}"
    if window.requests is not None and window.requests != cell.point.batch:
        yield f"its steps have {window.requests} requests, the cell has {cell.point.batch}"
    if stored is not None and stored.kernels and loop.kernels:
        yield from other_kernels(loop.kernels, stored.kernels)


def other_device(recording: Recording, run: Run) -> Iterator[str]:
    listed: object = run.environment.get("gpus")
    gpus = [str(gpu.get("name")) for gpu in listed if isinstance(gpu, Mapping)] if isinstance(listed, list) else []
    if gpus and recording.devices and not set(gpus) & set(recording.devices):
        yield f"it was recorded on {recording.devices[0]}, the run on {gpus[0]}"


def other_time(recording: Recording, run: Run) -> Iterator[str]:
    times = [entry.begin_ns for entries in (recording.calls, recording.work) for entry in entries]
    if recording.begin_ns is None or not times or run.ended is None:
        return
    try:
        began, ended = (datetime.fromtimestamp((recording.begin_ns + ns) / 1e9, UTC) for ns in (min(times), max(times)))
        # A run stores its times in whole seconds, cut off: it lasted up to a second longer than it says.
        outside = ended < moment(run.started) or began >= moment(run.ended) + timedelta(seconds=1)
    except (ValueError, OverflowError, OSError):  # no calendar has these times
        return
    if outside:
        yield f"it was recorded at {began:%Y-%m-%d %H:%M:%S} UTC, the run lasted from {run.started} to {run.ended}"


def other_kernels(traced: Mapping[str, int], stored: Mapping[str, int]) -> Iterator[str]:
    shared = len(traced.keys() & stored.keys()) / min(len(traced), len(stored))
    if shared < SHARED:
        yield f"{shared:.0%} of its kernels are among those of the run's own trace of this cell"


def moment(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)

"""Trace what an engine does during one block: CUPTI activity, recorded through a profiler that a plug-in brings.

The engine is watched from outside; it reports nothing itself except the marks that enclose the block. Calls are all
CUDA functions that the host called between the marks, whichever library called them. Kernels and copies are those that
these calls launched, even if they run on the GPU after the second mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specgate import plugins
from specgate.contract import Budget, Role
from specgate.contract.protocols import BLOCK_MARK, Activity, Decoded, Engine

HOST = ("cuda_runtime", "cuda_driver")
COPIES = ("gpu_memcpy", "gpu_memset")


def trace(engine: Engine, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
    """Decode one block under the profiler.

    If no profiler is usable here, the block is decoded all the same, and `Activity.unseen` says why nothing was
    recorded.
    """
    reasons = []
    for profiler in plugins.profilers():
        if (why := profiler.unusable()) is not None:
            reasons.append(why)
            continue
        decoded, events = profiler.recorded(lambda: engine.decode(role, budget, ()))
        return decoded, activity_of(events)
    unseen = "; ".join(reasons) or "no profiler is installed that could look"
    return engine.decode(role, budget, ()), Activity(unseen=unseen)


def activity_of(events: Sequence[Mapping[str, Any]]) -> Activity:
    """Reduce a Chrome trace to the kernels, copies and CUDA calls of the block. Times are in microseconds.

    If the trace does not hold exactly one marked block, or no work on a device in it, `Activity.unseen` says so.
    """
    marks = [e for e in events if e.get("name") == BLOCK_MARK and e.get("cat") == "user_annotation"]
    if len(marks) != 1:
        return Activity(unseen=f"{len(marks)} blocks are marked, 1 is needed: the engine sets no block_marker")
    begin, end = marks[0]["ts"], marks[0]["ts"] + marks[0]["dur"]
    calls = [e for e in events if e.get("cat") in HOST and begin <= e["ts"] <= end]
    launched = {correlation(e) for e in calls}
    device = [e for e in events if correlation(e) in launched and e.get("cat") in ("kernel", *COPIES)]
    if not device:
        return Activity(calls=names(calls), unseen="no work on a CUDA device between the block's marks")
    return Activity(
        kernels=names([e for e in device if e["cat"] == "kernel"]),
        copies=names([e for e in device if e["cat"] in COPIES]),
        calls=names(calls),
    )


def correlation(event: Mapping[str, Any]) -> object:
    """The number that links a host call with the kernel or copy it launched. None if the event has none."""
    arguments = event.get("args")
    return arguments.get("correlation") if isinstance(arguments, Mapping) else None


def names(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Event name → how often it occurs, sorted by name."""
    return dict(sorted(Counter(str(e["name"]) for e in events).items()))

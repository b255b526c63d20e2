"""Trace what an engine does during one block: CUPTI activity, recorded through a profiler that a plug-in brings.

The engine is watched from outside; it reports nothing itself except the marks that enclose the block. Calls are all
CUDA functions that the host called between the marks, whichever library called them. Kernels and copies are those that
these calls launched, even if they run on the GPU after the second mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specgate import plugins
from specgate.analysis.traces.chrome import read_events
from specgate.analysis.traces.recording import Malformed
from specgate.analysis.traces.steps import Window, loop_within
from specgate.contract import Budget, Role
from specgate.contract.protocols import BLOCK_MARK, Activity, Decoded, Engine, StatesProducts
from specgate.contract.traces import TunedProduct


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
        products = engine.products(role, budget) if isinstance(engine, StatesProducts) else ()
        return decoded, activity_of(events, products)
    unseen = "; ".join(reasons) or "no profiler is installed that could look"
    return engine.decode(role, budget, ()), Activity(unseen=unseen)


def activity_of(events: Sequence[Mapping[str, Any]], products: tuple[TunedProduct, ...] = ()) -> Activity:
    """Reduce a Chrome trace to the kernels, copies and CUDA calls of the block, and to the launches of the kernels of
    `products`. Times are in microseconds.

    If the trace does not hold exactly one marked block, or no work on a device in it, `Activity.unseen` says so.
    """
    marks = [e for e in events if e.get("name") == BLOCK_MARK and e.get("cat") == "user_annotation"]
    if len(marks) != 1:
        return Activity(unseen=f"{len(marks)} blocks are marked, 1 is needed: the engine sets no block_marker")
    try:
        recording = read_events(events).recording({}, unclosed=False)
    except Malformed as error:
        return Activity(unseen=f"the profiler's events cannot be read: {error}")
    begin, end = next((mark.begin_ns, mark.end_ns) for mark in recording.marks if mark.name == BLOCK_MARK)
    loop = loop_within(recording, Window(begin, end + 1, None, None, "the block's marks"))
    unseen = None if loop.kernels or loop.copies else "no work on a CUDA device between the block's marks"
    names = {f"{product.kernel} " for product in products}
    launches = {name: n for name, n in loop.launches.items() if name.startswith(tuple(names))}
    return Activity(
        kernels=loop.kernels,
        copies=loop.copies,
        calls=loop.calls,
        unseen=unseen,
        partial=loop.partial,
        products=products,
        launches=launches,
    )

"""I6: no copy to the host, no wait and no allocation inside the loop, as a traced block shows it."""

from __future__ import annotations

from collections.abc import Mapping

from specgate.analysis.perf_invariants.evidence import unseen
from specgate.analysis.traces.cuda_calls import ALLOCATIONS, TO_HOST, WAITING_COPIES, WAITS, count
from specgate.contract import BlockTrace, Held, Invariant


def quiet_loop(trace: BlockTrace | None) -> Invariant:
    """I6: the traced block has no copy to the host, no wait and no allocation."""
    if trace is None or trace.unseen is not None:
        return unseen("I6", trace)
    counts = {
        "d2h_in_loop": count(trace.copies, TO_HOST),
        "sync_in_loop": count(trace.calls, WAITS) + count(trace.calls, WAITING_COPIES),
        "alloc_in_loop": count(trace.calls, ALLOCATIONS),
    }
    if trace.source == "server-profiler" and any(counts.values()):
        return counted_per_step(trace, counts)
    for code, times in counts.items():
        if times:
            noun = {"d2h_in_loop": "copies to the host", "sync_in_loop": "waits", "alloc_in_loop": "allocations"}[code]
            return Invariant("I6", Held.BROKEN, code, f"{times} {noun} in {trace.steps} steps of the loop", counts)
    launches = sum(trace.calls.values())
    message = f"no copy to the host, wait or allocation among {launches} CUDA calls in {trace.steps} steps"
    return Invariant("I6", Held.HELD, "quiet", message, {**counts, "source": trace.source})


def counted_per_step(trace: BlockTrace, counts: Mapping[str, int]) -> Invariant:
    """I6 of a server: broken, with how much of it there is in a step.

    A server has to hand out tokens, and copies them to the host in every step. How many bytes these are, and whether
    its loop waits for them, makes the difference.
    """
    steps, loop = max(1, trace.steps), trace.loop
    copies, waits, allocations = (counts[code] / steps for code in ("d2h_in_loop", "sync_in_loop", "alloc_in_loop"))
    size = f" ({loop.bytes_to_host / steps:,.0f} bytes)" if loop and loop.bytes_to_host is not None else ""
    elsewhere = (
        f" ({loop.waits_elsewhere / steps:.2f} on other threads than the loop's)"
        if loop and loop.waits_elsewhere is not None and waits
        else ""
    )
    message = (
        f"per step {copies:.2f} copies to the host{size}, {waits:.2f} waits{elsewhere} and {allocations:.2f} "
        f"allocations, in {trace.steps} steps"
    )
    evidence: dict[str, float | int | str | None] = {**counts, "steps": trace.steps, "source": trace.source}
    if loop is not None:
        evidence |= {
            "bytes_to_host": loop.bytes_to_host,
            "waits_elsewhere": loop.waits_elsewhere,
            "gpu_busy_share": round(loop.busy_share, 4),
            "longest_gap_ns": loop.longest_gap_ns,
        }
    code = next(code for code, times in counts.items() if times)
    return Invariant("I6", Held.BROKEN, code, message, evidence)

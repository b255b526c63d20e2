"""Reasons why more may have happened in a loop than its trace shows.

A launch without work, or work without a launch, is a sign that the profiler lost records or did not record a kind of
them. A number that two calls share links work to neither: traces of several processes were merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from specgate.analysis.grouping import grouped
from specgate.analysis.traces.cuda_calls import kind_of, to_host, unknown_calls
from specgate.analysis.traces.ranges import Step
from specgate.analysis.traces.recording import Call, Doubt, Recording, Work, process_of

NO_CALLS: Final = "no calls of CUDA or HIP by the host are in it (record CPU activities)"
NO_WORK: Final = "no work on a GPU is in its decode steps (record CUDA activities)"
EARLY_NS: Final = 1_000_000
"""Work cannot begin before the call that launched it. Profilers align two clocks, by some microseconds."""
LATE_NS: Final = 600 * 1_000_000_000
"""No work waits so long for its turn."""
NAMED: Final = 5
"""Names that a reason lists."""


def doubts_of(
    recording: Recording, calls: Sequence[Call], work: Sequence[Work], shared: Mapping[int, bool]
) -> list[Doubt]:
    """Reasons why figures of a window cannot be told. `calls`, `work`: of the window. `shared`: by `shared_numbers`."""
    return [
        *recording.doubts,
        *without_each_other(recording, calls, work, shared),
        *colliding(calls, shared),
        *unknown_names(calls, work),
        *two_clocks(recording),
    ]


def without_each_other(
    recording: Recording, calls: Sequence[Call], work: Sequence[Work], shared: Mapping[int, bool]
) -> Iterator[Doubt]:
    """Yield doubts for launches without work and work without launches."""
    if not work:
        yield Doubt("work", NO_WORK)
    if not calls:
        yield Doubt("calls", NO_CALLS)
    launchers = {call.correlation for call in recording.calls} - {0}
    if calls and (lonely := sum(entry.correlation not in launchers for entry in work)):
        reason = f"{lonely:,} of {len(work):,} pieces of work have no call that launched them"
        yield Doubt("calls", reason)
    kinds: defaultdict[int, set[str]] = defaultdict(set)
    for entry in recording.work:
        kinds[entry.correlation].add(entry.kind)
    kinds.pop(0, None)
    idle = [
        c for c in calls if kind_of(c.name) == "launch" and c.correlation not in kinds and c.correlation not in shared
    ]
    if idle := outside_others(idle, [call for call in calls if call.correlation in kinds]):
        launches = sum(kind_of(call.name) == "launch" for call in calls)
        names = ", ".join(sorted({call.name for call in idle})[:NAMED])
        yield Doubt("work", f"{len(idle):,} of {launches:,} launches have no work on a GPU ({names})")
    moved = [call for call in calls if kind_of(call.name) in ("copy", "waiting copy", "set")]
    if lost := [call for call in moved if not kinds.get(call.correlation, set()) & {"copy", "set"}]:
        reason = f"{len(lost):,} of {len(moved):,} calls that copy or set memory show no copy on a GPU"
        yield Doubt("copies", reason)
        if any(call.correlation not in kinds for call in lost):
            yield Doubt("busy", reason)
    if twice := len(recording.work) - len(set(recording.work)):
        yield Doubt("work", f"{twice:,} pieces of work are recorded twice")


def outside_others(idle: Sequence[Call], busy: Sequence[Call]) -> list[Call]:
    """Launches of `idle` that do not lie within a call that has work, or around one: an API calls the other."""
    if not idle:
        return []
    by_thread = grouped(sorted(busy, key=lambda c: c.begin_ns), lambda c: c.thread)
    return [call for call in idle if not nested_in(call, by_thread[call.thread])]


def nested_in(call: Call, ordered: Sequence[Call]) -> bool:
    """True if `call` lies within one of these, or one of them within it. `ordered`: calls of one thread, in order."""
    at = bisect_right(ordered, call.begin_ns, key=lambda c: c.begin_ns)
    return any(nested(call, other) for other in ordered[max(0, at - 1) : at + 1])


def nested(one: Call, other: Call) -> bool:
    outer, inner = (one, other) if one.begin_ns <= other.begin_ns else (other, one)
    return one.thread == other.thread and inner.end_ns <= outer.end_ns and one.name != other.name


def shared_numbers(calls: Sequence[Call]) -> dict[int, bool]:
    """Correlation number → whether calls of one process share it, for each that several calls carry. The runtime's
    call and the driver's within it may share theirs.
    """
    first: dict[int, Call] = {}
    shared: dict[int, bool] = {}
    for call in calls:
        other = first.setdefault(call.correlation, call)
        if call.correlation and other is not call and not nested(call, other):
            within = process_of(call.thread) == process_of(other.thread)
            shared[call.correlation] = shared.get(call.correlation, False) or within
    return shared


def colliding(calls: Sequence[Call], shared: Mapping[int, bool]) -> Iterator[Doubt]:
    """Yield doubts for traces of several processes in one file that cannot be told apart."""
    ours = {call.correlation for call in calls} & shared.keys()
    if ours:
        reason = f"{len(ours):,} correlation numbers are of several calls each: traces of several processes are merged"
        yield Doubt("work", reason)
        if any(shared[number] for number in ours):
            yield Doubt("calls", reason)


def overlapping(run: Sequence[Step]) -> Iterator[Doubt]:
    """Yield a doubt if a step begins before the one before it has ended."""
    if overlaps := sum(later.begin_ns < earlier.end_ns for earlier, later in pairwise(run)):
        reason = f"{overlaps:,} steps begin before the step before them has ended, on one thread"
        yield Doubt("all", reason)


def unclear_processes(thread: str | None, threads: Collection[str], callers: Collection[str]) -> Iterator[Doubt]:
    """Yield doubts if it is not clear whose the calls and steps in a window are.

    `thread`: the loop's; None if no ranges tell steps. `threads`: those with steps. `callers`: processes with calls.
    """
    if thread is None:
        return
    ours, stepping = process_of(thread), {process_of(other) for other in threads}
    if sum(process_of(other) == ours for other in threads) > 1:
        yield Doubt("all", f"steps are told on several threads of the process {ours}")
    if silent := sorted(stepping - {ours, *callers}):
        yield Doubt("all", f"steps are told in processes that have no calls: {listed(silent)}")
    if others := sorted({*callers} - {ours, *stepping}):
        yield Doubt("all", f"processes without steps of their own have calls in its time: {listed(others)}")


def unknown_names(calls: Sequence[Call], work: Sequence[Work]) -> Iterator[Doubt]:
    """Yield doubts for calls and copies whose names are not known."""
    names = sorted({call.name for call in calls})
    if unknown := [*unknown_calls(dict.fromkeys(names, 1))]:
        yield Doubt("waits", f"it is not known whether these calls wait or allocate: {listed(unknown)}")
    copies = sorted({entry.name for entry in work if entry.kind == "copy" and to_host(entry.name) is None})
    if copies:
        yield Doubt("copies", f"it is not known where these copies lead: {listed(copies)}")


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(name[:80] for name in names[:NAMED]) + more


def two_clocks(recording: Recording) -> Iterator[Doubt]:
    """Yield a doubt if work begins before the calls that launched it, or long after them."""
    begins = {call.correlation: call.begin_ns for call in recording.calls if call.correlation}
    delays = (entry.begin_ns - begins[entry.correlation] for entry in recording.work if entry.correlation in begins)
    if odd := sum(not -EARLY_NS <= delay <= LATE_NS for delay in delays):
        reason = (
            f"{odd:,} pieces of work begin before the calls that launched them, or minutes later: the clocks differ"
        )
        yield Doubt("work", reason)

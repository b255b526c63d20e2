"""The Chrome trace of torch's profiler (Kineto), as `torch.profiler` exports it: vLLM's, SGLang's, anybody's.

Of its events, four kinds matter. Times are in microseconds, with nanoseconds as decimals.

    cat cuda_runtime, cuda_driver          a CUDA function that the host called; args.correlation
    cat kernel, gpu_memcpy, gpu_memset     work on a device; args.correlation, args.device, args.bytes
    cat user_annotation                    a range of `record_function`, on a thread of the host
    cat gpu_user_annotation                the same range, drawn over the device's time: left out, it is no work
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from sys import intern
from typing import Any, Final

from specgate.analysis.traces.events import Text, TraceDocument
from specgate.analysis.traces.recording import Call, Malformed, Mark, Recording, Work, WorkKind
from specgate.files.json_text import shown

HOST: Final = ("cuda_runtime", "cuda_driver")
WORK: Final[Mapping[str, WorkKind]] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
MOST_EVENTS: Final = 3_000_000
"""Calls, ranges and pieces of work that are kept. Tracing a hundred decode steps gives some hundred thousand."""
LONGEST_US: Final = 1e13
"""No time in a trace is further from its beginning: it is four months."""
EPOCH_US: Final = 1e15
"""Times beyond this count from 1970: older versions wrote them so, without `baseTimeNanoseconds`."""


def read_chrome(text: Text) -> Recording:
    """The recording in a Chrome trace. Raises Malformed where it is none."""
    document = TraceDocument(text)
    calls: list[Call] = []
    work: list[Work] = []
    marks: list[Mark] = []
    for number, event in enumerate(document.events(), 1):
        if not isinstance(event, Mapping):
            raise Malformed(f"event {number:,} is not an object: {shown(event)}")
        if event.get("ph") != "X":
            continue
        category = event.get("cat")
        if category in HOST:
            calls.append(Call(*named_times(event, number), thread_of(event), correlation_of(event)))
        elif category == "user_annotation":
            marks.append(Mark(*named_times(event, number), thread_of(event)))
        elif isinstance(category, str) and (kind := WORK.get(category)):
            work.append(work_of(event, kind, number))
        if len(calls) + len(work) + len(marks) > MOST_EVENTS:
            raise Malformed(f"more than {MOST_EVENTS:,} calls, ranges and pieces of work: trace fewer steps")
    facts = document.facts
    notes = []
    if (ranks := distributed(facts)) is not None:
        notes.append(f"the trace of rank {ranks[0]} of {ranks[1]}")
    return Recording("torch profiler", calls, work, marks, devices(facts), begin_of(facts, calls, work), tuple(notes))


def named_times(event: Mapping[str, Any], number: int) -> tuple[str, int, int]:
    """(name, begin, end) of an event, in nanoseconds. Raises Malformed."""
    name = event.get("name")
    if not isinstance(name, str):
        raise Malformed(f"event {number:,}: name: {shown(name)}: a text is needed")
    where = f"event {number:,} ({shown(name)})"
    ts, dur = microseconds(event.get("ts"), where, "ts"), microseconds(event.get("dur", 0), where, "dur")
    if dur < 0 or abs(ts) > EPOCH_US * 4 or dur > LONGEST_US:
        raise Malformed(f"{where}: it begins at {ts} µs and lasts {dur} µs: no event does")
    begin = round(ts * 1000)
    return intern(name), begin, begin + round(dur * 1000)


def microseconds(value: object, where: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise Malformed(f"{where}: {key}: {shown(value)}: microseconds are needed")
    return value


def work_of(event: Mapping[str, Any], kind: WorkKind, number: int) -> Work:
    arguments = arguments_of(event)
    device, size = arguments.get("device", 0), arguments.get("bytes")
    return Work(
        kind,
        *named_times(event, number),
        device if isinstance(device, int) else 0,
        correlation_of(event),
        size if isinstance(size, int) and kind == "copy" and size >= 0 else None,
    )


def arguments_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, Mapping) else {}


def correlation_of(event: Mapping[str, Any]) -> int:
    number = arguments_of(event).get("correlation")
    return number if isinstance(number, int) else 0


def thread_of(event: Mapping[str, Any]) -> str:
    return intern(f"{event.get('pid')}/{event.get('tid')}")


def devices(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the GPUs: `deviceProperties` in the order of their numbers."""
    listed = facts.get("deviceProperties")
    names = [entry.get("name") for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    return tuple(name for name in names if isinstance(name, str))


def distributed(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rank, how many ranks) of a trace of several processes; None of a single one's."""
    info = facts.get("distributedInfo")
    if not isinstance(info, Mapping):
        return None
    rank, world = info.get("rank"), info.get("world_size")
    return (rank, world) if isinstance(rank, int) and isinstance(world, int) and world > 1 else None


def begin_of(facts: Mapping[str, Any], calls: list[Call], work: list[Work]) -> int | None:
    """Time at which the trace's clock is 0, in nanoseconds since 1970."""
    base = facts.get("baseTimeNanoseconds")
    if isinstance(base, int) and base > 0:
        return base
    first = next((entry.begin_ns for entries in (calls, work) for entry in entries), 0)
    return 0 if first > EPOCH_US * 1000 else None

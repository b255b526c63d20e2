"""Chrome traces: the recording that their events make.

Of the events, four kinds matter. Times are in microseconds, with nanoseconds as decimals.

    cat cuda_runtime, cuda_driver          a function of CUDA or HIP that the host called; args.correlation
    cat kernel, gpu_memcpy, gpu_memset     work on a device; args.correlation, args.device, args.bytes; of a kernel
                                           args.grid, args.block and args."shared memory" (static and dynamic)
    cat user_annotation                    a range of `record_function`, on a thread of the host
    cat gpu_user_annotation                the same range, drawn over the device's time: it is no work

An event lasts (ph X), or begins and ends (ph B, E). One that cannot be read is left out and counted. The figures that
such events may belong to are in doubt, and so are all figures if categories are not known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Final, Literal

from specgate.analysis.traces.cuda_calls import RUNTIME
from specgate.analysis.traces.document import Text, TraceDocument
from specgate.analysis.traces.ranges import names_step
from specgate.analysis.traces.recording import About, Call, Doubt, Malformed, Mark, Recording, Work, WorkKind
from specgate.contract.traces import launch_name
from specgate.files.json_text import shown

Kind = Literal["call", "range", "range of a GPU", "kernel", "copy", "set", "other"]

CATEGORIES: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "driver"), "call"),
    **dict.fromkeys(("hip_runtime", "hip_driver", "hip_runtime_api", "hip_api"), "call"),
    **dict.fromkeys(("kernel", "concurrent_kernel"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), "copy"),
    **dict.fromkeys(("gpu_memset", "memset"), "set"),
    **dict.fromkeys(("user_annotation", "nvtx", "nvtx_range"), "range"),
    "gpu_user_annotation": "range of a GPU",
    **dict.fromkeys(("cpu_op", "operator", "python_function", "trace", "fwdbwd", "ac2g", "async_cpu_to_gpu"), "other"),
    **dict.fromkeys(("overhead", "cpu_instant_event", "cuda_sync", "cuda_event", "cuda_profiler_range"), "other"),
    "external_correlation": "other",
}
"""Categories in lower case, as versions of torch's profiler since 1.8.1 spell them, and HIP's."""
_ABOUT: Final[Mapping[Kind | None, tuple[About, ...]]] = {
    **dict.fromkeys(("call",), ("calls",)),
    **dict.fromkeys(("kernel", "copy", "set"), ("work",)),
    **dict.fromkeys(("other", "range of a GPU"), ()),
    **dict.fromkeys(("range", None), ("all",)),
}
"""What is in doubt if an event of this kind is lost. None: of an unknown kind."""

_SUSPICIOUS: Final = re.compile(
    r"runtime|driver|api|kernel|mem(cpy|set)|gpu|device|stream|correlation|[nxmth]pu|hsa|hcc|rocm|roctracer", re.I
)
_FOREIGN_CALL: Final = re.compile(r"(?:hsa_|acl|musa|mu|ze|ur|sycl)(?=[A-Z_a-z]*[A-Z])")
_NUMBER: Final = re.compile(r"\s*-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*")

MOST_EVENTS: Final = 3_000_000
"""Calls, ranges and pieces of work that are kept. Tracing a hundred decode steps gives some hundred thousand."""
LONGEST_US: Final = 1e13
"""No time in a trace is further from its beginning: it is four months."""
EPOCH_US: Final = 1e15
"""Times up to four times this may count from 1970, as older versions wrote them."""
MOST_US: Final = 1e30
"""What is not below this, infinity among it, is no number of microseconds."""
CAUSES: Final = 5
"""Causes and categories that are named one by one."""


def read_chrome(text: Text) -> Recording:
    """The recording in a Chrome trace. Raises Malformed where it is none, or none of its events can be read."""
    document = TraceDocument(text)
    reader = read_events(document.events())
    return reader.recording(document.facts, unclosed=document.unclosed)


def read_events(events: Iterable[object]) -> Reader:
    """What is read of a trace's events. Raises Malformed for too many."""
    reader = Reader()
    for number, event in enumerate(events, 1):
        try:
            reader.take(event)
        except Malformed as error:
            reader.lose(f"event {number:,}{error}", kind_of_event(event))
        if len(reader.calls) + len(reader.work) + len(reader.marks) > MOST_EVENTS:
            raise Malformed(f"more than {MOST_EVENTS:,} calls, ranges and pieces of work: trace fewer steps")
    reader.end()
    return reader


class Reader:
    """Calls, work and ranges of a trace, and what could not be read of it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.work: list[Work] = []
        self.marks: list[Mark] = []
        self.ranges: Counter[str] = Counter()
        self.strangers: Counter[str] = Counter()
        self.lost: Counter[tuple[str, tuple[About, ...]]] = Counter()
        self.examples: dict[tuple[str, tuple[About, ...]], str] = {}
        self._open: dict[str, list[Mapping[str, Any]]] = {}

    def take(self, event: object) -> None:
        """Keep an event. Raises Malformed for one that cannot be read."""
        if not isinstance(event, Mapping):
            raise Malformed(f" is not an object: {shown(event)}: one is needed")
        phase = event.get("ph")
        if phase == "B":
            self._open.setdefault(thread_of(event), []).append(event)
        elif phase == "E":
            if opened := self._open.get(thread_of(event)):
                self._take(joined(opened.pop(), event))
            else:
                raise Malformed(f" ({shown(event.get('name'))}): it ends and has not begun")
        elif phase == "X":
            self._take(event)
        elif kind_of_event(event) not in ("other", None):
            raise Malformed(f" ({shown(event.get('name'))}): ph: {shown(phase)}: X, or B and E are needed")

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = kind_of_event(event)
        if kind == "call":
            self.calls.append(Call(*named_times(event), host_thread(event), correlation_of(event)))
        elif kind == "range":
            self.marks.append(Mark(*named_times(event), host_thread(event)))
        elif kind == "kernel" or kind == "copy" or kind == "set":
            self.work.append(work_of(event, kind))
        elif kind == "range of a GPU":
            self.ranges[named_times(event)[0]] += 1
        elif kind is None:
            self.strangers[printable(str(event.get("cat", "no category")))] += 1

    def end(self) -> None:
        """Count what has begun and not ended."""
        for event in (event for opened in self._open.values() for event in opened):
            self.lose(f"an event ({shown(event.get('name'))}): it begins and does not end", kind_of_event(event))

    def lose(self, why: str, kind: Kind | None) -> None:
        """Count an event that cannot be read, or is of no use. `why`: with the event's number and name."""
        self._lose(why.rpartition(": ")[2], _ABOUT[kind], why)

    def _lose(self, cause: str, about: tuple[About, ...], example: str) -> None:
        self.lost[cause, about] += 1
        self.examples.setdefault((cause, about), example)

    def recording(self, facts: Mapping[str, Any], *, unclosed: bool) -> Recording:
        """All that was kept. Raises Malformed if nothing was, though there was something.

        `facts`: the values beside the events. `unclosed`: whether their list has no last bracket.
        """
        doubts = [*self.doubts()]
        if doubts and not (self.calls or self.work or self.marks):
            raise Malformed(f"nothing in it can be read: {doubts[0].reason}")
        notes = [*self.harmless()]
        if unclosed:
            doubts.append(Doubt("end", "the list of events has no last bracket: the file may be cut off"))
        if (ranks := distributed(facts)) is not None:
            notes.append(f"the trace of rank {ranks[0]} of {ranks[1]}")
        return Recording(
            profiler="torch profiler",
            calls=self.calls,
            work=self.work,
            marks=self.marks,
            devices=devices(facts),
            notes=tuple(notes),
            doubts=tuple(doubts),
            others=self.ranges,
        )

    def doubts(self) -> Iterator[Doubt]:
        for (cause, about), times in self.lost.items():
            yield from (Doubt(part, skipped(times, self.examples[cause, about])) for part in about)
        if self.strangers:
            names = ", ".join(f"{name} ({n:,})" for name, n in self.strangers.most_common(CAUSES))
            reason = f"{self.strangers.total():,} events are of categories that are not known: {names}"
            yield from (Doubt("work", reason), Doubt("calls", reason))

    def harmless(self) -> Iterator[str]:
        """Yield a note for each cause of which no figure is in doubt."""
        for (cause, about), times in self.lost.items():
            if not about:
                yield skipped(times, self.examples[cause, about])


def skipped(times: int, example: str) -> str:
    if times == 1:
        return f"1 event is left out: {example}"
    return f"{times:,} events are left out for one cause, the first: {example}"


def kind_of_event(event: object) -> Kind | None:
    """The kind of an event: by its category, or if that is not known, by its name. None: it may be of any kind."""
    if not isinstance(event, Mapping):
        return None
    category, name = event.get("cat"), event.get("name")
    if isinstance(category, str) and (kind := CATEGORIES.get(category) or CATEGORIES.get(category.lower())):
        return kind
    if isinstance(name, str) and RUNTIME.match(name):
        return "call"
    if event.get("ph") not in ("X", "B", "E"):
        return "other"
    signs = (str(category), *arguments_of(event))
    foreign = not isinstance(category, str) or any(_SUSPICIOUS.search(sign) for sign in signs)
    return None if foreign or (isinstance(name, str) and (_FOREIGN_CALL.match(name) or names_step(name))) else "other"


def joined(begin: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    """One event of the two that begin and end it. Raises Malformed for times that cannot be read."""
    where = f" ({shown(begin.get('name'))})"
    lasts = microseconds(end.get("ts"), where, "ts") - microseconds(begin.get("ts"), where, "ts")
    return {**begin, "dur": lasts, "args": {**arguments_of(begin), **arguments_of(end)}}


def named_times(event: Mapping[str, Any]) -> tuple[str, int, int]:
    """(name, begin, end) of an event, in nanoseconds. Raises Malformed."""
    name = event.get("name")
    if not isinstance(name, str):
        raise Malformed(f": name: {shown(name)}: a text is needed")
    where = f" ({shown(name)})"
    ts, dur = microseconds(event.get("ts"), where, "ts"), microseconds(event.get("dur"), where, "dur")
    if ts > EPOCH_US * 4 or dur > LONGEST_US:
        hint = " (nanoseconds?)" if max(ts, dur) < 4e18 else ""
        raise Malformed(f"{where}: it begins at {ts} µs and lasts {dur} µs: no event does{hint}")
    if min(ts, dur) < 0:
        raise Malformed(f"{where}: it begins at {ts} µs and lasts {dur} µs: times of 0 or more are needed")
    begin = round(ts * 1000)
    return intern(printable(name)), begin, begin + round(dur * 1000)


def printable(name: str) -> str:
    """`name` with escapes for control characters and for what is no character."""
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


def microseconds(value: object, where: str, key: str) -> float:
    """A time. Some profilers write it as text."""
    number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < MOST_US:
        raise Malformed(f"{where}: {key}: {shown(value)}: microseconds are needed")
    return number


def work_of(event: Mapping[str, Any], kind: WorkKind) -> Work:
    arguments = arguments_of(event)
    device, size = integer_of(arguments.get("device")), integer_of(arguments.get("bytes"))
    size = size if size is not None and kind == "copy" and size >= 0 else None
    name, begin, end = named_times(event)
    launch = launch_of(name, arguments) if kind == "kernel" else None
    return Work(kind, name, begin, end, device or 0, correlation_of(event), size, launch)


def launch_of(name: str, arguments: Mapping[str, Any]) -> str | None:
    """The `launch_name` of a kernel; None where the profiler tells no grid, block and shared memory."""
    grid, block = arguments.get("grid"), arguments.get("block")
    shared = integer_of(arguments.get("shared memory"))
    if shared is None or not isinstance(grid, list) or not isinstance(block, list):
        return None
    blocks, threads = ([integer_of(n) or 0 for n in size] for size in (grid, block))
    return intern(launch_name(name, blocks, threads, shared))


def arguments_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, Mapping) else {}


def integer_of(value: object) -> int | None:
    """An integer of 64 bits, which older profilers wrote as text; None for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def correlation_of(event: Mapping[str, Any]) -> int:
    return integer_of(arguments_of(event).get("correlation")) or 0


def host_thread(event: Mapping[str, Any]) -> str:
    """PROCESS/THREAD of an event of the host. Raises Malformed for one without."""
    for key in ("pid", "tid"):
        if isinstance(event.get(key), bool) or not isinstance(event.get(key), int | str):
            raise Malformed(f" ({shown(event.get('name'))}): {key}: {shown(event.get(key))}: a number is needed")
    return thread_of(event)


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

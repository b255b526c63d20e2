"""Chrome traces: their events one by one, and the recording that these make.

The document is an object with a list `traceEvents`, or such a list alone ("JSON object format", "JSON array format").

Of its events, four kinds matter. Times are in microseconds, with nanoseconds as decimals.

    cat cuda_runtime, cuda_driver          a CUDA function that the host called; args.correlation
    cat kernel, gpu_memcpy, gpu_memset     work on a device; args.correlation, args.device, args.bytes
    cat user_annotation                    a range of `record_function`, on a thread of the host
    cat gpu_user_annotation                the same range, drawn over the device's time: left out, it is no work
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import isfinite
from sys import intern
from typing import Any, Final, Protocol

import ijson

from specgate.analysis.traces.recording import Call, Malformed, Mark, Recording, Work, WorkKind
from specgate.files.json_text import shown

LONGEST_VALUE: Final = 16 << 20
"""Bytes of the longest event, or of the values beside the events."""

MOST_DIGITS: Final = 2_000
TO_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
NO_NUMBERS: Final = re.compile(rb"(\A|[:\[,])(\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
"""Literals that Python's `json` writes and JSON does not have. They are read as null."""
PLAIN: Final = frozenset({str, int})
"""Types of values that are taken as the parser gives them."""

Tokens = Iterator[tuple[str, Any]]
"""Pairs of a kind and a value, as `ijson.basic_parse` yields them."""


class Text(Protocol):
    """A stream of characters."""

    def read(self, size: int, /) -> str: ...


class TraceDocument:
    """A trace document that is read once, from its beginning to its end.

    `facts`: the values beside the list of events, once `events` has been read to its end.
    """

    def __init__(self, text: Text) -> None:
        self.facts: dict[str, Any] = {}
        self._text = text
        self._events = self._bytes = 0

    def events(self) -> Iterator[Any]:
        """Yield every event. Raises Malformed for a text that is no trace, and for one that ends too early."""
        tokens: Tokens = ijson.basic_parse(self)
        try:
            if next(tokens)[0] == "start_array":
                yield from self._list(tokens)
            else:
                yield from self._object(tokens)
            next(tokens, None)  # refuses text behind the document
        except RecursionError:
            raise self._malformed("too many lists and objects within each other") from None
        except ijson.JSONError as error:
            why, near = [" ".join(line.split()) for line in (*str(error).splitlines(), "")[:2]]
            raise self._malformed(why.rstrip(".") + f", near {near}" * bool(near)) from error
        except ArithmeticError:
            raise self._malformed("a number with too large an exponent") from None

    def read(self, size: int, /) -> bytes:
        """Return the next piece for the parser. Raises Malformed for a value that is too long."""
        if self._bytes > LONGEST_VALUE:
            raise self._malformed(f"one value of more than {LONGEST_VALUE:,} bytes")
        text = self._text.read(size)
        while text and text[-1] not in ",]}" and len(text) < 2 * size and (more := self._text.read(1)):
            text += more  # so that no literal is cut in two
        piece = text.encode()
        self._bytes += len(piece)
        if b"NaN" in piece or b"Infinity" in piece:
            piece = NO_NUMBERS.sub(rb"\1\2null", piece)
        # Of an integer that Python refuses for its length (4,300 digits), ijson 3.6 makes a crash of the process.
        if b"0" * MOST_DIGITS in piece.translate(TO_ZEROS):
            raise self._malformed(f"a number of more than {MOST_DIGITS:,} digits")
        return piece

    def _object(self, tokens: Tokens) -> Iterator[Any]:
        keys = []
        for kind, key in tokens:
            if kind == "end_map":
                break
            keys.append(key)
            kind, value = next(tokens)
            if key == "traceEvents" and keys.count(key) == 1:
                if kind != "start_array":
                    raise self._malformed("traceEvents is not a list")
                yield from self._list(tokens)
            else:
                self.facts[key] = value_of(tokens, kind, value)
        if "traceEvents" not in keys:
            raise self._malformed(f"no list traceEvents among the keys {', '.join(keys) or '(none)'}")

    def _list(self, tokens: Tokens) -> Iterator[Any]:
        for event in entries(tokens):
            self._events += 1
            self._bytes = 0
            yield event

    def _malformed(self, why: str) -> Malformed:
        return Malformed(f"after {self._events:,} events: {why}")


def value_of(tokens: Tokens, kind: str, value: Any) -> Any:
    """Return the value that begins with a token of this kind and value."""
    if kind == "start_map":
        members = {}
        for kind, key in tokens:
            if kind == "end_map":
                break
            kind, value = next(tokens)
            # A large trace has a hundred million values, nearly all of them texts and integers: no call for these.
            members[key] = value if type(value) in PLAIN else value_of(tokens, kind, value)
        return members
    if kind == "start_array":
        return [*entries(tokens)]
    return float(value) if isinstance(value, Decimal) else value


def entries(tokens: Tokens) -> Iterator[Any]:
    """Yield each entry of the list whose beginning was the last token."""
    for kind, value in tokens:
        if kind == "end_array":
            return
        yield value_of(tokens, kind, value)


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

"""A recording: calls, work on a GPU and marks, and reasons why some of them may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

WorkKind = Literal["kernel", "copy", "set"]


class Malformed(ValueError):
    """Reason why a file holds no recording, and where in the file it lies."""


class Call(NamedTuple):
    """A function of CUDA or HIP that the host called. `correlation` links it to the work that it launched; 0 for none.

    `thread`: PROCESS/THREAD.
    """

    name: str
    begin_ns: int
    end_ns: int
    thread: str
    correlation: int


class Work(NamedTuple):
    """A kernel, copy or memory set on a device. `size`: bytes of a copy; None where they are not told. `launch`: a
    kernel's `contract.traces.launch_name`; None where its grid is not told.
    """

    kind: WorkKind
    name: str
    begin_ns: int
    end_ns: int
    device: int
    correlation: int
    size: int | None = None
    launch: str | None = None


class Mark(NamedTuple):
    """A range that the engine opened and closed around something, on one thread of the host."""

    name: str
    begin_ns: int
    end_ns: int
    thread: str


About = Literal["all", "work", "copies", "busy", "calls", "waits", "end"]
"""Part of a recording of which more may have happened than was seen.

`work`: kernels, copies, and the time that the GPU was busy. `copies`: copies alone.
`busy`: that time alone. `calls`: waits, allocations and all
other calls. `waits`: waits and allocations alone. `end`: whatever came last, so that nothing can be called absent.
"""


class Doubt(NamedTuple):
    """Reason why figures of a recording cannot be told."""

    about: About
    reason: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace file, read.

    `profiler`: what wrote it, as in a sentence.
    `calls`, `work`, `marks`: in no particular order.
    `others`: names of ranges that are not on a thread of the host, and how often: those over the time of a GPU.
    `doubts`: why there may be more than was read.
    `devices`: the names of the GPUs that it knows of.
    `notes`: what whoever reads the figures should know.
    """

    profiler: str
    calls: Sequence[Call]
    work: Sequence[Work]
    marks: Sequence[Mark]
    devices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)


def process_of(thread: str) -> str:
    """The process that a thread of a recording belongs to."""
    return thread.rpartition("/")[0]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if one of `patterns` matches the whole of `name`, case-sensitively."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)

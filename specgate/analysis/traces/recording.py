"""A recording: calls, work on a GPU and marks, and which CUDA calls matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

WorkKind = Literal["kernel", "copy", "set"]


class Malformed(ValueError):
    """Reason why a file holds no recording, and where in the file it lies."""


class Call(NamedTuple):
    """A CUDA function that the host called. `correlation` links it to the work that it launched; 0 for none."""

    name: str
    begin_ns: int
    end_ns: int
    thread: str
    correlation: int


class Work(NamedTuple):
    """A kernel, copy or memory set on a device. `size`: bytes of a copy; None where they are not told."""

    kind: WorkKind
    name: str
    begin_ns: int
    end_ns: int
    device: int
    correlation: int
    size: int | None = None


class Mark(NamedTuple):
    """A range that the engine opened and closed around something, on one thread of the host."""

    name: str
    begin_ns: int
    end_ns: int
    thread: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace file, read.

    `profiler`: what wrote it, as in a sentence.
    `calls`, `work`, `marks`: in no particular order.
    `devices`: the names of the GPUs that it knows of.
    `begin_ns`: when it began, in nanoseconds since 1970, for times of the recording that count from 0; None where it is
        not told.
    `notes`: what whoever reads the figures should know.
    """

    profiler: str
    calls: Sequence[Call]
    work: Sequence[Work]
    marks: Sequence[Mark]
    devices: tuple[str, ...] = ()
    begin_ns: int | None = None
    notes: tuple[str, ...] = field(default=())


TO_HOST: Final = ("*DtoH*", "*Device -> Pageable*", "*Device -> Pinned*", "*Device -> Host*")
"""Names of copies from the device to the host."""
WAITS: Final = ("*Synchronize*",)
"""CUDA functions in which the host waits for the device."""
WAITING_COPIES: Final = ("cudaMemcpy", "cuMemcpyDtoH*", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol")
"""Copies in which the host waits for the device."""
ALLOCATIONS: Final = (
    "cudaMalloc*",
    "cudaFree*",
    "cudaHostAlloc*",
    "cuMemAlloc*",
    "cuMemFree*",
    "cuMemCreate*",
    "cuMemMap*",
)
"""CUDA functions that allocate or free memory."""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if one of `patterns` matches the whole of `name`, case-sensitively."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def count(counts: Mapping[str, int], patterns: Sequence[str]) -> int:
    """Number of entries of `counts` whose name one of `patterns` matches."""
    return sum(n for name, n in counts.items() if matches(name, patterns))

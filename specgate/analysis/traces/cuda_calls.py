"""Names of CUDA functions and copies that a quiet decode loop has none of, as patterns (`fnmatch`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

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

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
    """Whether one of `patterns` matches the whole of `name`, in upper and lower case as they are."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def count(found: Mapping[str, int], patterns: Sequence[str]) -> int:
    """How many entries of `found` have a name that one of `patterns` matches."""
    return sum(n for name, n in found.items() if matches(name, patterns))

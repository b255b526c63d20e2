"""Kinds of functions that the host calls in CUDA's runtime and driver API and in HIP, and directions of copies.

HIP's functions are named as CUDA's, so that one table serves: what follows `cuda`, `cu` or `hip`. A function in none of
its rows is not known: it may wait or allocate. Sources: the references of CUDA 13.0 and of HIP (ROCm 7.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

CallKind = Literal["wait", "waiting copy", "allocation", "launch", "copy", "set", "quiet"]
"""`launch`: of kernels or of a graph. `copy`, `set`: without waiting. `quiet`: none of these."""

RUNTIME: Final = re.compile(r"_*(?:cuda|cu|hip)(?=[A-Z])")
"""Beginning of the functions that are known here."""
_SUFFIX: Final = re.compile(r"(?:_(?:ptsz|ptds|spt|v\d+|R\d+))+$")
"""Versions of one function: cuMemAlloc_v2, cudaMemcpyAsync_ptsz, cudaStreamSynchronize_v3020, hipMemcpy_spt."""

_KINDS: Final[Mapping[CallKind, re.Pattern[str]]] = {
    "wait": re.compile(r"\w*Synchronize\w*"),
    "allocation": re.compile(
        r"(?:Host|Ext)?Malloc\w*|(?:Host)?Free\w*|Host(?:Alloc|Register|Unregister)|DestroyArray|Array\w*(?:Create|Destroy)"
        r"|Mem(?:Alloc|Free)\w*|MemHost(?:Alloc|Register|Unregister)\w*|Mem(?:Create|Release|Unmap|SetAccess)|MemMap\w*"
        r"|MemAddress(?:Reserve|Free)|MemPool(?:Create|Destroy|TrimTo)"
    ),
    "copy": re.compile(r"Memcpy\w*Async\w*"),
    "waiting copy": re.compile(r"Memcpy\w*"),
    "set": re.compile(r"Memset\w*Async"),
    "launch": re.compile(r"(?:Ext|Hcc|Module|Graph)*Launch(?!HostFunc)\w*"),
    "quiet": re.compile(
        r"\w*Get(?:[A-Z]\w*)?|PeekAtLastError|SetDevice|Ctx(?:Set|Push|Pop)Current|(?:Func|Kernel)Set\w+|LaunchHostFunc"
        r"|Stream(?:Query|IsCapturing|WaitEvent|WaitValue\d+|WriteValue\d+|SetAttribute|AddCallback)"
        r"|Event(?:Query|Record\w*|Create\w*|Destroy|ElapsedTime)|ThreadExchangeStreamCaptureMode|Occupancy\w+"
        r"|Profiler(?:Start|Stop)|(?:Push|Pop)CallConfiguration|TensorMapEncode\w*|DeviceCanAccessPeer|ApiName|Init"
    ),
}
"""The first row that matches the whole of a name counts."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> CallKind | None:
    """Kind of a function of the host; None for one that is not known."""
    if (match := RUNTIME.match(name)) is None:
        return None
    stem = _SUFFIX.sub("", name[match.end() :])
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(stem)), None)


def count_calls(calls: Mapping[str, int], *kinds: CallKind) -> int:
    """Number of calls of one of these kinds. `calls`: name → how often."""
    return sum(n for name, n in calls.items() if kind_of(name) in kinds)


def waits(calls: Mapping[str, int]) -> int:
    return count_calls(calls, "wait", "waiting copy")


def allocations(calls: Mapping[str, int]) -> int:
    return count_calls(calls, "allocation")


def unknown_calls(calls: Mapping[str, int]) -> dict[str, int]:
    """The calls of which it is not known whether they wait or allocate."""
    return {name: n for name, n in calls.items() if kind_of(name) is None}


_PLACE: Final = "host|pageable|pinned|device|array|peer|managed"
_ROUTES: Final = (
    re.compile(r"(?<![A-Za-z])([HDAP])to([HDAP])(?![a-z])"),
    re.compile(rf"({_PLACE})[ _-]*(?:to|->)[ _-]*({_PLACE})", re.IGNORECASE),
)
_OF_HOST: Final = frozenset({"h", "host", "pageable", "pinned"})
_SET: Final = re.compile(r"mem ?set|fill", re.IGNORECASE)


@lru_cache(maxsize=4096)
def to_host(copy: str) -> bool | None:
    """True for the name of a copy from a device to the host, False for another copy or a memory set; None where the
    name does not say.

    Names: `Memcpy DtoH (Device -> Pinned)`, `CopyDeviceToHost`, `MEMORY_COPY_DEVICE_TO_HOST`, `Memset (Device)`.
    """
    routes = [(a.lower() in _OF_HOST, b.lower() in _OF_HOST) for route in _ROUTES for a, b in route.findall(copy)]
    if not routes:
        return False if _SET.search(copy) else None
    return (False, True) in routes


def count_copies(copies: Mapping[str, int], direction: bool | None) -> int:
    """Number of copies with this answer of `to_host`. `copies`: name → how often."""
    return sum(n for name, n in copies.items() if to_host(name) is direction)

"""What a back end implements: being asked whether it runs here, loading a pair, prefill and decode."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from specgate.core import Budget, EngineFacts, PairRef, Role, Served

BLOCK_MARK = "specgate.block"


@contextmanager
def block_marker() -> Iterator[None]:
    """An engine wraps the steps of a block in this, so that a profiler can tell them from what comes before and after.

    Costs a microsecond where nobody profiles, and nothing where torch has not been imported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.profiler.record_function(BLOCK_MARK):
        yield


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a back end can run on this machine. Of several, the highest `rank` is the default."""

    usable: bool
    reason: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What an engine must be able to hold before anything is measured: checked, and refused with numbers, at load
    time.
    """

    pair: PairRef
    dtype: str
    max_batch: int
    max_positions: int
    max_k: int
    perf_mode: bool
    options: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None
    """A folder for what programs that the engine starts print; None: a temporary one."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one decode stretch returns; fields as in `core.Block`, which the runner makes of it.

    An engine that prefills and decodes in one go, as a server does, sets `prefill_ns`; what its `prefill` returned is
    then disregarded.
    """

    elapsed_ns: int
    step_ns: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...]
    drafted: tuple[tuple[int, ...], ...]
    truncated: tuple[int, ...]
    finish: tuple[str, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    prefill_ns: int | None = None
    served: Served | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What was seen of a block: kernels, copies and CUDA calls of the host, counted by name; `unseen` says why nothing
    was.
    """

    kernels: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unseen: str | None = None


class Engine(Protocol):
    """A loaded pair. Lives in a worker process; all calls come from one thread, in the order prefill, decode*,
    top2*.
    """

    def facts(self) -> EngineFacts: ...

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Fill the caches from ragged `prompts` (one per slot), forget what was there; return nanoseconds.

        The draft's cache is filled too where `draft` is set; without it only baseline blocks may follow.
        """

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Rewind every slot to its prompt, then decode greedily under `role` until `budget` is spent."""

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        """The two largest target logits (float32) for the token that follows prompt[slot] + continuation.

        Log-probabilities will do, since only their difference is used. None where the engine cannot say.
        """

    def close(self) -> None: ...


@runtime_checkable
class ScriptedTrace(Protocol):
    """An engine that answers for the look at its loop itself: one that only pretends to decode (its acceptance is
    `scripted`), or one whose loop runs in a process that cannot be looked into, and which says so (`Activity.unseen`).
    """

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]: ...


@runtime_checkable
class Backend(Protocol):
    """A way to measure. Constructing and asking `available` must be cheap and import no engine library."""

    name: str
    description: str

    def available(self) -> Availability: ...

    def open(self, request: OpenRequest) -> Engine:
        """Load the pair. Raises BackendError (CheckpointError) with file, tensor or key, and what would be right."""


@runtime_checkable
class ChecksOptions(Protocol):
    """What a back end has besides where it can refuse options before a run folder, which stores them, is made."""

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raises UsageError for what cannot be meant, or must not be written down."""

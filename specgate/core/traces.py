"""What a profiler saw of a decode loop, and the PERF_MODE invariants that follow.

Data classes only; `specgate.analysis.perf_invariants` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from specgate.core.stored_keys import stored_keys


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """What a profiler saw of one untimed block of a cell. The same engine decoded it from the same prompts as the timed
    blocks.

    Everything is counted between the marks that the engine sets around a block's steps (`api.block_marker`).

    `source`: who looked: the harness's profiler, or the engine itself, which then brought its own trace.
    `tokens[slot]`: token ids, which link the trace to the timed blocks.
    `kernels`, `copies`, `calls`: launches, memory copies and CUDA functions called by the host, counted by name.
    `unseen`: why nothing could be observed; None where something was.
    """

    __pydantic_config__: ClassVar = stored_keys(worker_generation="session")

    cell: str
    prompt_set: int
    worker_generation: int
    source: Literal["profiler", "engine"]
    steps: int
    tokens: tuple[tuple[int, ...], ...]
    kernels: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unseen: str | None = None


class Held(StrEnum):
    """Whether an invariant held."""

    HELD = "held"
    BROKEN = "broken"
    UNSEEN = "not observable"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One PERF_MODE invariant of one cell: its `id`, I1 … I7, what was found, and the evidence for it."""

    id: str
    held: Held
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)

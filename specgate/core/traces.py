"""What was seen of a decode loop, and what it proves of it. Nouns only; `certificate.py` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from specgate.core.stored_keys import stored_keys


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """What a profiler saw of one untimed block of a cell, decoded by the same engine from the same prompts as the timed
    ones.

    Counted between the marks that the engine sets around a block's steps (`api.block_marker`): `kernels` by name,
    `copies` and `calls` (CUDA functions called by the host) by name. `source` says who looked; `unseen` why nothing
    could be. `tokens[slot]` links it to the timed blocks.
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
    """One PERF_MODE invariant of one cell: `id` I1 … I7, what was found, and by what evidence."""

    id: str
    held: Held
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)

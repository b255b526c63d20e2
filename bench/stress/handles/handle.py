"""Protocol of an engine's cache under stress."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from bench.stress.memory import Reading
from specgate.contract.protocols import Engine


@dataclass(frozen=True, slots=True)
class CacheFault:
    """Damage to a cache that a decode run must notice.

    `said`: a part of the error that it must end with.
    `mended`: whether the engine forgets its prompts then, so that nothing can be decoded from the damaged cache.
    """

    said: str
    mended: bool


class Handle(Protocol):
    """An engine and the way into its cache."""

    @property
    def engine(self) -> Engine:
        """A loaded pair, which has to have a draft."""

    graph_steps: int
    """Steps of a graph; 1 where steps are launched one by one."""
    faults: Mapping[str, CacheFault]
    """Name → the damage that can be done."""

    def prompt_sum(self) -> int:
        """A sum of what the cache holds of the prompts, without the last position of each, which decoding writes."""

    def complaints(self) -> list[str]:
        """Return the faults of the cache after a decode run, a sentence each."""

    def damage(self, fault: str) -> AbstractContextManager[None]:
        """Have the next decode run meet the fault after its first steps. Only for prompts that are prefilled."""

    def steps_before_fault(self) -> int:
        """Steps that the decode run which met the fault had finished before."""

    def reading(self) -> Reading:
        """Return the memory in use."""

"""The places that tasks of a fleet are measured in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Files = Mapping[str, bytes]
"""Name relative to a folder → content."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that measures one task at a time: a GPU of a host, or a share of a host's CPUs.

    `identity` tells it from all other places: the GPU's UUID, or the host's identity and a number. `name` is for
    people.
    """

    name: str
    identity: str


class NodeLost(Exception):
    """A task ended without a result: its process, its host or the connection to it was lost. The message says how."""


class Machines(Protocol):
    """Provides slots, and carries tasks out in them. `carry_out` is called from one thread for each slot."""

    @property
    def slots(self) -> Sequence[Slot]: ...

    def carry_out(self, slot: Slot, files: Files) -> Files:
        """Run the task in `files` in `slot`, and return the files that it left. Raises NodeLost."""

    def stop(self) -> None:
        """End whatever is being carried out: every `carry_out` under way raises NodeLost."""

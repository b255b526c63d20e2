"""Protocols of the other plug-ins of the harness: pairs by name, and a profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from specgate.contract import AcceptanceSource, PairRef
from specgate.contract.scenarios.assets import Asset

T = TypeVar("T")


@runtime_checkable
class PairSource(Protocol):
    """Pairs that a plug-in has under names, for `--pair NAME`."""

    name: str
    wheels: Sequence[Asset]
    """Pinned wheels that the pairs are made of."""

    def names(self) -> Sequence[str]:
        """Return the names of the pairs."""

    def pair(self, name: str) -> PairRef:
        """Return the pair of that name, one of `names()`. Raises EnvironmentRefused where it must be fetched first."""

    def acceptance(self, name: str) -> AcceptanceSource:
        """Return where the acceptance of that pair comes from."""

    def parts(self, name: str) -> Iterator[tuple[str, Path]]:
        """Yield (what it is, folder) of the folders that the pair is made of here, whether they are there or not."""

    def prepare(self) -> Iterator[tuple[str, Path]]:
        """Make what fetched wheels are turned into. Yields (what it is, folder)."""


@runtime_checkable
class Profiler(Protocol):
    """Records from outside what an engine does on a device, in the engine's process."""

    name: str

    def unusable(self) -> str | None:
        """Return why nothing can be recorded in this process; None if something can."""

    def recorded(self, work: Callable[[], T]) -> tuple[T, Sequence[Mapping[str, Any]]]:
        """Do `work`. Returns its result, and the events of a Chrome trace of it, with times in microseconds."""

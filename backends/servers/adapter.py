"""What one engine must say of itself so that the rest can drive it. One file per engine implements this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from specgate.backends.servers.exchange import Ask, Chunk, Json
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import Meter
from specgate.backends.servers.options import Options
from specgate.backends.servers.process import Command
from specgate.core import PairRef, Role
from specgate.eagle3.auxiliary_layers import AuxiliaryLayers
from specgate.eagle3.hf_keys import Keys

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

SERVED_NAME = "specgate"
"""The model name of a server that was started here."""

Drafter = Literal["eagle3", "ngram"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a server that is to be started must hold: one role of a scenario. `folder` takes its log and its config."""

    role: Role
    pair: PairRef
    port: int
    dtype: str
    max_batch: int
    max_positions: int
    options: Options
    folder: Path

    @property
    def draft(self) -> Path:
        assert self.pair.draft is not None
        return self.pair.draft


class Adapter(Protocol):
    """An engine's flags, formats and conventions. Stateless: everything that a server remembers is in its `Server`."""

    name: str
    description: str
    program: str
    """What is started where -o program does not say otherwise."""
    versions: str
    """The versions whose formats this adapter knows."""
    health: str
    """A path that answers with status 200 once requests are taken."""
    drafters: tuple[Drafter, ...]
    forces_acceptance: bool
    reads_window: bool | None
    """Whether a draft's sliding window is obeyed; None: not known."""
    own_options: frozenset[str]
    """Options beside those that all servers have."""
    needed_files: tuple[str, ...]
    """Of these, those that must name a file wherever a server is started."""
    failures: tuple[Failure, ...]

    def command(self, launch: Launch) -> Command: ...

    def version(self, client: Client) -> str: ...

    def forget(self, client: Client) -> None:
        """Drop cached prefixes of a server that was started by someone else."""

    def request(self, ask: Ask) -> tuple[str, Json]:
        """Path and body of a streamed completion."""

    def read(self, event: Json, seen: int) -> Chunk:
        """One event of the stream, `seen` tokens after its start. KeyError, TypeError, ValueError: malformed."""

    def meter(self) -> Meter: ...

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        """The streams of the target that this engine feeds to this draft, by its own reading of the config."""


def part(event: Json, key: str) -> Mapping[str, object]:
    """An object inside an event. Raises KeyError and TypeError."""
    value = event[key]
    if not isinstance(value, Mapping):
        raise TypeError(f"{key} is no object")
    return value


def integer(values: Mapping[str, object], key: str) -> int:
    """Raises KeyError and TypeError."""
    value = values[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{key} = {value!r} is no integer")
    return value


def integers(values: Mapping[str, object], key: str) -> tuple[int, ...]:
    """A list of integers; () where the key is missing or null. Raises TypeError."""
    found = values.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        raise TypeError(f"{key} is no list of integers")
    return tuple(found)

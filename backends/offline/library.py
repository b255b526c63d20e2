"""The interface between one library and the code that drives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specgate.backends.offline.options import OfflineOptions
from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.exchange import KvCache
from specgate.contract import Role
from specgate.contract.protocols import OpenRequest


@dataclass(frozen=True, slots=True)
class Opening:
    """Settings of one role's process."""

    role: Role
    request: OpenRequest
    options: OfflineOptions

    @property
    def draft(self) -> Path:
        assert self.request.pair.draft is not None
        return self.request.pair.draft


class Library(Protocol):
    """A library's arguments and conventions. It has no state."""

    name: str
    """The back end's."""
    module: str
    """What is imported, and the name of its driver."""
    adapter: Adapter
    """Of the same engine behind a server: its draft conventions and known failures hold here too."""
    prefix: str
    """Of options for one argument, as in `llm.enforce_eager=true`."""
    own_options: Mapping[str, Sequence[str]]
    """Options that only this library has, and their values, the default first."""
    ours: Sequence[str]
    """Arguments that the back end gives itself."""
    environment: Mapping[str, str]
    """Variables that are set unless the environment or an option `env.NAME` sets them."""

    def speculation(self, opening: Opening) -> Mapping[str, object]:
        """The speculative config of a role that drafts."""

    def spec_format(self, options: OfflineOptions) -> str:
        """Return the engine whose keys `speculation` has (`checkpoints.spec_config.sources.FORMATS`)."""

    def opening(self, opening: Opening) -> Mapping[str, object]:
        """The arguments of the driver's `open`."""

    def shows_steps(self, opening: Opening, facts: Mapping[str, object]) -> bool:
        """True if blocks of the opened engine can be shown step by step. Raises UsageError if option `show` asks for
        the impossible.
        """

    def settings_in(self, log: Sequence[str]) -> Mapping[str, str]:
        """Return the engine's settings, read from lines of its log (`contract.EngineIdentity.settings`)."""

    def kv_cache_in(self, log: Sequence[str]) -> KvCache:
        """Return the size of its KV cache, read from lines of its log."""

"""The interface between one engine and the code that drives it. There is one file per engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from specgate.backends.servers.exchange import Ask, Chunk, Json, KvCache
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import Meter, Speculation
from specgate.backends.servers.options import Options
from specgate.backends.servers.process import Command
from specgate.backends.servers.sampling import Expresses
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.hf_keys import Keys
from specgate.contract import PairRef, Role
from specgate.contract.protocols import TextOrChat
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

SERVED_NAME = "specgate"
"""The model name that servers started by specgate serve under."""

UNTOLD: Final = "version not told"
"""The version of an engine that has no path for it."""
TOKENIZER_FILES: Final = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json", "vocab.json", "tiktoken.model",
)  # fmt: skip
"""What the tokenizers of Hugging Face folders are stored in."""

Drafter = Literal["given", "eagle3", "ngram"]
"""The method of speculation: the server's own, by its own flags; or one that specgate asks for when it starts it."""
OWN_LENGTHS_OF: Final[Mapping[Drafter, str]] = {
    "given": "up to K, or none, as the server's method has it",
    "ngram": "up to K where an n-gram of the text repeats, else none",
}
"""Drafter → the lengths of its drafts, where it may draft fewer than K tokens in a step."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of a server that is to be started, for one role. `folder` receives its log and its config file."""

    role: Role
    pair: PairRef
    port: int
    dtype: str
    max_batch: int
    max_positions: int
    options: Options
    folder: Path
    lists_all: bool = False
    """Whether it is to list log-probabilities of all tokens, where it is asked for them."""

    @property
    def drafts(self) -> bool:
        """True if the adapter's own flags ask for speculation; the user's do for the drafter `given`."""
        return self.role.speculative and self.options.drafter_of(self.role) != "given"

    @property
    def draft(self) -> Path:
        assert self.pair.draft is not None
        return self.pair.draft

    @property
    def has_tokenizer(self) -> bool:
        """True if the target's folder holds a tokenizer; a planted pair's does not."""
        return any((self.pair.target / name).is_file() for name in TOKENIZER_FILES)


@dataclass(frozen=True, slots=True)
class Reported:
    """Self-report of a server, beside its version.

    `settings`: those of `contract.SETTINGS` that it tells. `path`: where it loaded its model from. `architecture`: its
    model's. `kv`: the size of its KV cache. `on_cpu`: it says that it runs on the CPU. `max_requests`: those that it
    decodes at a time.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    architecture: str | None = None
    kv: KvCache = field(default_factory=KvCache)
    on_cpu: bool = False
    max_requests: int | None = None


class Adapter(ABC):
    """An engine's flags, formats and conventions: by default those that most engines have.

    An adapter has no state. What is known of a running server is in its `Server`.
    """

    name: str
    description: str
    program: str
    """The program to start, unless -o program names another."""
    owner: str
    """The owner of its models in `/v1/models`."""
    versions: str
    """The engine's versions whose formats this adapter knows."""
    health = "/health"
    """The path that answers with status 200 once the server takes requests."""
    drafters: tuple[Drafter, ...] = ("eagle3",)
    forces_acceptance = False
    reads_window: bool | None = None
    """Whether the engine applies a draft's sliding window. None where it is not known."""
    cumulative = False
    """Whether an event of a stream may repeat all tokens so far."""
    names_all = True
    """Whether a stream has the ids of all tokens. Where it leaves some out, an answer in one piece has them."""
    counts_outputs = False
    """Whether its counters of speculation count one step per output that it hands over, and events are these outputs.
    An output of several steps is then counted as its last one.
    """
    counts_events = False
    """Whether nothing else counts its steps than the events of its streams."""
    draft_counter: str
    """The name under which it counts the steps with drafts."""
    expresses: Expresses
    """What of a scenario's `sampling` its requests can say."""
    own_options: frozenset[str] = frozenset()
    """Names of options beside those that all servers have."""
    switches_prefix_cache = False
    """Whether it starts servers with their prefix cache on (`-o prefix_cache=on`), and can keep single requests out of
    the cache of one that runs already.
    """
    needed_files: tuple[str, ...] = ()
    """Those of `own_options` that must name an existing file when a server is started."""
    failures: tuple[Failure, ...] = ()

    @abstractmethod
    def command(self, launch: Launch) -> Command: ...

    def version(self, client: Client) -> str:
        return UNTOLD

    def reported(self, client: Client, log: Sequence[str]) -> Reported:
        """Ask the engine about itself. `log`: the lines of a server that was started here; empty for others."""
        return Reported()

    def recognises(self, client: Client) -> bool:
        """Return whether what answers is this engine, by paths and names that no other one has."""
        return False

    def running_speculation(self, client: Client) -> Speculation:
        """Ask a running server for its speculation; nothing is known before a request by default."""
        return Speculation()

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        """Return the tokens of a text or a chat by the server's tokenizer; None if it has no end point for that.
        `special`: with those that the tokenizer puts around a text.
        """
        return None

    def forget(self, client: Client) -> None:
        """Make a server that someone else started drop its cached prefixes. Where that cannot be, cache hits show."""
        return

    @abstractmethod
    def request(self, ask: Ask) -> tuple[str, Json]:
        """(path, body) of a streamed completion."""

    @abstractmethod
    def read(self, event: Json, tokens_so_far: int) -> Chunk:
        """Read one event of the stream, after `tokens_so_far` tokens. A malformed event raises KeyError, TypeError or
        ValueError.
        """

    def chat_fields(self, ask: Ask) -> Json:
        """Fields of a chat request (`adapters/chat.py`) that other engines do not have."""
        return {}

    @abstractmethod
    def meter(self) -> Meter: ...

    @abstractmethod
    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        """The auxiliary hidden-state layers that this engine feeds to this draft, by its own reading of the config."""


def part(event: Json, key: str) -> Mapping[str, object]:
    """The object below `key` of an event. Raises KeyError where it is missing, TypeError where it is no object."""
    value = event[key]
    if not isinstance(value, Mapping):
        raise TypeError(f"{key} is no object")
    return value


def integer(values: Mapping[str, object], key: str) -> int:
    """The integer below `key`. Raises KeyError where it is missing, TypeError where it is no integer."""
    value = values[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{key} = {value!r} is no integer")
    return value


def integers(values: Mapping[str, object], key: str) -> tuple[int, ...]:
    """The list of integers below `key`; () where it is missing or null. Raises TypeError for anything else."""
    items = values.get(key)
    if items is None:
        return ()
    if not isinstance(items, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in items):
        raise TypeError(f"{key} is no list of integers")
    return tuple(items)


def check_method(adapter: Adapter, options: Options, drafter: Drafter | None) -> None:
    """Raise UsageError for a method of speculation, or a forced acceptance, that the engine does not have."""
    if options.force_al is not None and not adapter.forces_acceptance:
        raise UsageError(f"option force_al = {options.force_al:g}: {adapter.name} has no way to force acceptance")
    if drafter not in (None, "given", *adapter.drafters):
        known = ", ".join(adapter.drafters) or "given"
        raise UsageError(f"option drafter = {drafter}: {adapter.name} does not draft so", hint=f"known: {known}")


def last_ranking(positions: object) -> Chunk:
    """The candidates for the last token of an event, from a list per token of [log-probability, id, …]; an empty chunk
    where there is none.
    """
    if not isinstance(positions, list) or not positions or not positions[-1]:
        return Chunk()
    return Chunk.ranking((float(entry[0]), int(entry[1])) for entry in positions[-1])

"""Any other server that speaks the OpenAI format: attached by URL, and counted by the events of its streams.

It has no counters that are known. A step is taken to be an event, which is what most servers send. Where plain decoding
has events of several tokens, they are no steps, and nothing is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specgate.backends.servers.adapter import Drafter, Launch, Reported
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import Ask, Chunk, Json, Reading
from specgate.backends.servers.facts.served import no_ids
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import Meter, Speculation
from specgate.backends.servers.process import Command
from specgate.backends.servers.sampling import Expresses
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.hf_keys import Keys
from specgate.contract.protocols import TextOrChat
from specgate.errors import BackendError, UsageError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

UNTOLD = "not told over HTTP"


class Compatible:
    name = "openai"
    description = "any other server of the OpenAI format"
    program = "-"
    owner = "openai"
    versions = UNTOLD
    health = "/v1/models"
    drafters: tuple[Drafter, ...] = ()
    forces_acceptance = False
    reads_window: bool | None = None
    cumulative = False
    names_all = True
    counts_outputs = False
    counts_events = True
    draft_counter = "events of its streams"
    expresses = Expresses(settings=frozenset({"top_p", "presence_penalty", "frequency_penalty"}), seed_bits=31)
    own_options: frozenset[str] = frozenset()
    switches_prefix_cache = False
    cache_sizes: tuple[str, ...] | None = None
    sized_with: tuple[str, str] | None = None
    cache_cap: str | None = None
    needed_files: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

    def command(self, launch: Launch) -> Command:
        raise UsageError("back end openai: no server is started", hint="specgate micro URL,URL names servers that run")

    def version(self, client: Client) -> str:
        """Its `/version`, which several servers have."""
        try:
            answer = client.json("/version", may_be_missing=True)
        except BackendError:
            return UNTOLD
        return str(answer.get("version", UNTOLD)) if isinstance(answer, dict) else UNTOLD

    def reported(self, client: Client, log: Sequence[str]) -> Reported:
        """Nothing: no path is known."""
        return Reported()

    def recognises(self, client: Client) -> bool:
        """False: it is taken for what no other engine recognises."""
        return False

    def running_speculation(self, client: Client) -> Speculation:
        """Unknown: the events of a short text show it."""
        return Speculation()

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        """Those of `/tokenize`, where it is as in vLLM."""
        try:
            return openai.token_ids(client, model, text, special=special)
        except BackendError:
            return None

    def forget(self, client: Client) -> None:
        """No path is known."""

    def request(self, ask: Ask) -> tuple[str, Json]:
        return openai.PATH, openai.body(ask, *sorted(self.expresses.settings), return_token_ids=True)

    def read(self, event: Json, tokens_so_far: int) -> Chunk:
        return openai.read(event, tokens_so_far)

    def chat_fields(self, ask: Ask) -> Json:
        return {"return_token_ids": True}

    def meter(self) -> Meter:
        return NoMeter()

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        return no_ids(draft, target_layers)


class NoMeter:
    """Counts nothing: only the streams can show drafts."""

    def read(self, client: Client) -> Reading:
        return Reading(speculative=False)


ADAPTER = Compatible()

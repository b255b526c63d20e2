"""Any other server that speaks the OpenAI format: attached by URL, and counted by the events of its streams.

It has no counters that are known. A step is taken to be an event, which is what most servers send. Where plain decoding
has events of several tokens, they are no steps, and nothing is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specgate.backends.servers.adapter import UNTOLD, Drafter, Launch
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import Ask, Json, Reading
from specgate.backends.servers.meter import Meter
from specgate.backends.servers.process import Command
from specgate.backends.servers.sampling import Expresses
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, no_ids
from specgate.checkpoints.hf_keys import Keys
from specgate.contract.protocols import TextOrChat
from specgate.errors import BackendError, UsageError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client


SHORT: Final = "a"
"""A text that every tokenizer takes."""


class Compatible(openai.Format):
    name = "openai"
    description = "any other server of the OpenAI format"
    program = "-"
    owner = "openai"
    versions = UNTOLD
    health = "/v1/models"
    drafters: tuple[Drafter, ...] = ()
    counts_events = True
    draft_counter = "events of its streams"
    expresses = Expresses(settings=frozenset({"top_p", "presence_penalty", "frequency_penalty"}), seed_bits=31)

    def command(self, launch: Launch) -> Command:
        raise UsageError("back end openai: no server is started", hint="specgate micro URL,URL names servers that run")

    def version(self, client: Client) -> str:
        """Its `/version`, which several servers have."""
        try:
            answer = client.json("/version", may_be_missing=True)
        except BackendError:
            return UNTOLD
        return str(answer.get("version", UNTOLD)) if isinstance(answer, dict) else UNTOLD

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        """Those of `/tokenize`, where it is as in vLLM. Raises BackendError where it refuses this text alone."""
        try:
            return openai.token_ids(client, model, text, special=special)
        except BackendError:
            if text == SHORT or self.token_ids(client, model, SHORT) is None:
                return None
            raise

    def request(self, ask: Ask) -> tuple[str, Json]:
        return openai.PATH, openai.body(ask, *sorted(self.expresses.settings), return_token_ids=True)

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

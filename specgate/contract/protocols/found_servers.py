"""What answers at a URL, and the back ends that find it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

TextOrChat = str | Mapping[str, object]
"""A text, or the fields of a chat request: `messages`, and what else its template reads (`tools`, …)."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that runs, as it describes itself.

    `backend`: name of the back end that measures it. `engine`: its name and version, for a reader. `model`: what
    requests call its model. `source`: folder, file or repository that the model was loaded from. `draft_length`: draft
    tokens of a step at most; 0: it does not speculate. `shown`: the longest that a short text showed, and drafts may be
    longer. `method`: of speculation, in its own words. `max_positions`, `max_requests`: its limits. None: the server
    does not tell; of drafts `unknown` says why. `chats_only`: it has no end point for completions.
    """

    url: str
    backend: str
    engine: str
    model: str
    source: str | None = None
    draft_length: int | None = None
    unknown: str | None = None
    method: str | None = None
    max_positions: int | None = None
    max_requests: int | None = None
    vocab: int | None = None
    chats_only: bool = False
    shown: bool = False


@runtime_checkable
class FindsServers(Protocol):
    """Optional for a back end that attaches to servers: recognise the engine behind a URL."""

    def find_server(self, url: str, options: Mapping[str, str]) -> FoundServer:
        """Ask what answers at `url`. `options`: of the back end, such as the variable with a key.

        Raises UsageError for what is no URL or no engine, and BackendError where nothing answers.
        """

    def server_tokens(
        self, server: FoundServer, options: Mapping[str, str], texts: Sequence[TextOrChat]
    ) -> list[tuple[int, ...]] | None:
        """Return the token ids of `texts` by the server's own tokenizer, a chat in its template; None if the server
        has no such end point. Raises BackendError for a text that it refuses.
        """

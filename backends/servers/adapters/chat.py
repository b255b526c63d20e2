"""The OpenAI chat format, which all of these engines speak. What an engine has beside it is in its own adapter.

Deltas of every channel are tokens: answers, reasoning, tool calls. Ids stand under `token_ids` (vLLM) or `gen_tokens`
(LMDeploy); in log-probabilities as `token_id:N` (vLLM) or under `id` (llama.cpp). Without any of them, the bytes of
tokens whose log-probabilities were asked for name them, and else the text of the deltas is all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specgate.backends.servers.adapter import integer, integers
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import Chunk, Json
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

PATH: Final = "/v1/chat/completions"
NOT_THERE: Final = (404, 405, 501)
"""Statuses of an end point that a server does not have."""
IDS: Final = ("token_ids", "gen_tokens")
"""Keys of a choice, or of its delta, that hold token ids."""


def lacks_completions(client: Client, path: str, model: str) -> bool:
    """True if a server has no end point `path` for completions. A request without a prompt tells: one that is there
    refuses what it lacks, or breaks on it. It names its `model`, without which some say 404 for that.
    """
    try:
        status, _ = client.post(path, {"model": model, "max_tokens": 1}, client.stall_s)
    except BackendError:
        return False
    return status in NOT_THERE


def read(event: Json, tokens_so_far: int) -> Chunk:
    """One event of the stream: a choice with a delta, a usage record, or both."""
    chunk = replace(openai.read(event, tokens_so_far), prompt=integers(event, "prompt_token_ids"))
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return chunk
    choice = choices[0]
    named, places = named_tokens(choice.get("logprobs")), [choice, choice.get("delta") or {}]
    return replace(
        chunk,
        tokens=next((ids for place in places for key in IDS if (ids := integers(place, key))), named.tokens),
        prompt=integers(choice, "prompt_token_ids") or chunk.prompt,
        top=named.top,
        top_tokens=named.top_tokens,
        names=named.names,
        top_names=named.top_names,
    )


def named_tokens(logprobs: object) -> Chunk:
    """The tokens of a delta by their log-probabilities, and the candidates for the last one: by ids where these are
    told, else by their bytes.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list) or not content:
        return Chunk()
    ids = [id_of(entry) for entry in content]
    listed = content[-1].get("top_logprobs") or []
    ranked = sorted(listed, key=lambda entry: -float(entry["logprob"]))
    top, candidates = tuple(float(entry["logprob"]) for entry in ranked), [id_of(entry) for entry in ranked]
    known = tuple(one for one in ids if one is not None)
    if len(known) < len(ids):
        return Chunk(top=top, names=tuple(map(bytes_of, content)), top_names=tuple(map(bytes_of, ranked)))
    return Chunk(tokens=known, top=top, top_tokens=tuple(one for one in candidates if one is not None))


def id_of(entry: Mapping[str, Any]) -> int | None:
    """The id that an entry of log-probabilities tells; None where it has none."""
    if isinstance(entry.get("id"), int) and not isinstance(entry["id"], bool):
        return integer(entry, "id")
    name = entry["token"]
    return int(name.removeprefix(openai.TOKEN_ID)) if name.startswith(openai.TOKEN_ID) else None


def bytes_of(entry: Mapping[str, Any]) -> bytes:
    """The bytes of a token, from an entry of log-probabilities."""
    spelt = entry.get("bytes")
    return bytes(spelt) if isinstance(spelt, list) else str(entry["token"]).encode()

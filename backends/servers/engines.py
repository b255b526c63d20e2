"""The engines: their adapters by name, and the one that answers at a URL, with its model and its speculation.

Engines name themselves as the owner of their models. Behind a gateway that renames it, paths and metrics tell. An
engine that states no draft length is asked for one short text, and its counters show what it drafted.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from specgate.backends.servers.adapter import UNTOLD, Adapter, Reported
from specgate.backends.servers.adapters import chat, compatible, llamacpp, lmdeploy, openai, sglang, trtllm, vllm
from specgate.backends.servers.answers import Read
from specgate.backends.servers.blocks import between
from specgate.backends.servers.client import CONNECT_S, Client, Recording, StreamLimit
from specgate.backends.servers.events import events, text_in
from specgate.backends.servers.exchange import NOTHING, Ask, OtherForm, SpecCounts, Usage, one_line
from specgate.backends.servers.facts.reported import text_of
from specgate.backends.servers.meter import Speculation
from specgate.backends.servers.options import check_url, number
from specgate.backends.servers.secrets import Secret
from specgate.contract.protocols import FoundServer, TextOrChat, masked
from specgate.errors import BackendError, UsageError

ADAPTERS: Final[Mapping[str, Adapter]] = {
    a.name: a
    for a in (*(vllm.ADAPTER, sglang.ADAPTER, trtllm.ADAPTER, lmdeploy.ADAPTER, llamacpp.ADAPTER), compatible.ADAPTER)
}
TITLES: Final = {
    "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "lmdeploy": "LMDeploy", "llamacpp": "llama.cpp",
    "openai": "an OpenAI-compatible server",
}  # fmt: skip
SILENT_S: Final = 20.0
"""Silence after which a server is not asked further, if `stall_s` is not given."""
HTTP_STATUS: Final = re.compile(r"HTTP \d{3}")
REFUSED: Final = re.compile(r"HTTP (401|403|429|503)\b")
"""A key is missing, or the server takes no requests: no sign of another engine."""
PROBE: Final = "1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2"
PROBE_TOKENS: Final = 24
LONGER_TOKENS: Final = 128
"""Asked for where drafts are seen and their length is not told: few steps need not accept a whole draft."""
SEVERAL_A_STEP: Final = 1.1
"""Tokens per event from which on a server speculates."""
NEEDED: Final = "a measurement needs texts and their true number of tokens: does a gateway in between change them?"
ANSWERED: Final = "a measurement needs such requests answered: does a gateway in between refuse or change them?"
SETTLE_S: Final = 1.0
"""How long the counters of the short text may lag behind it."""


def adapter_named(name: str) -> Adapter:
    return ADAPTERS[name]


def find_server(url: str, options: Mapping[str, str]) -> FoundServer:
    """As `protocols.FindsServers` says."""
    check_url("url", url, options.get("allow_remote") == "on")
    with connected(url, options) as client:
        if client.status("/v1/models") == 0:
            raise silent(url)
        owner, reason = owner_of(client)
        adapter = next((a for a in ADAPTERS.values() if a.owner == owner), None) or recognised(client)
        if adapter is None and reason:
            raise UsageError(
                f"{url}: no engine that is known: {reason}",
                hint="the URL of the engine itself, http://HOST:PORT, without a gateway before it; "
                f"known: {', '.join(TITLES.values())}",
            )
        return described(adapter or compatible.ADAPTER, client, options)


def silent(url: str) -> BackendError:
    """The error for a URL without any answer in HTTP."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    try:
        socket.create_connection((str(parts.hostname), parts.port or (443 if secure else 80)), CONNECT_S).close()
    except OSError:
        return BackendError(f"{url}: nobody listens there", hint="start the server, or correct the URL")
    hint = f"{'http' if secure else 'https'}://, or another port? else its log says why"
    return BackendError(f"{url}: who listens there gives no answer in {parts.scheme.upper()}", hint=hint)


@contextmanager
def connected(url: str, options: Mapping[str, str]) -> Iterator[Client]:
    secret = Secret.from_environment(options.get("api_key_env"))
    with closing(Client(url, stall_s=number(options, "stall_s", SILENT_S), secret=secret)) as client:
        yield client


def owner_of(client: Client) -> tuple[str, str]:
    """(the owner of the first model in the server's list, "" or why there is none). Raises BackendError where a key is
    missing.
    """
    try:
        return text_of(client.json("/v1/models")["data"][0], "owned_by") or "", ""
    except (LookupError, TypeError):
        return "", "its /v1/models lists no models"
    except BackendError as error:
        if REFUSED.search(error.message):
            raise
        why = one_line(error.message.removeprefix(f"{client.url}/v1/models: "), 80)
        status = HTTP_STATUS.match(why)
        return "", f"its /v1/models: {status[0] if status and not why.startswith('HTTP 3') else why}"


def recognised(client: Client) -> Adapter | None:
    """The engine that paths and metrics show; None if they show none."""
    for adapter in ADAPTERS.values():
        try:
            if adapter.recognises(client):
                return adapter
        except BackendError:  # a path that another engine, or a gateway, has for something else
            continue
    return None


def described(adapter: Adapter, client: Client, options: Mapping[str, str]) -> FoundServer:
    """What the server tells of itself."""
    model = openai.served_model(client, options.get("model"))
    try:
        version, reported = adapter.version(client), adapter.reported(client, ())
    except (LookupError, TypeError, BackendError):  # its `Server` says what is wrong
        version, reported = "", Reported()
    speculation = speculation_of(adapter, client, model.name)
    return FoundServer(
        url=client.url,
        backend=adapter.name,
        engine=f"{TITLES[adapter.name]} {one_line(version, 40)}".removesuffix(UNTOLD).strip(),
        model=masked(model.name),
        source=reported.path or model.path or model.name,
        draft_length=speculation.length,
        method=speculation.method,
        unknown=speculation.unknown,
        max_positions=model.max_positions,
        max_requests=reported.max_requests,
        vocab=model.vocab,
        chats_only=chats_only(adapter, client, model.name),
        shown=speculation.shown,
    )


def speculation_of(adapter: Adapter, client: Client, model: str) -> Speculation:
    """What it tells of its speculation, or a short text shows; unknown where neither does."""
    try:
        stated = adapter.running_speculation(client)
        if stated.length is not None:
            return stated
        if adapter.counts_events:
            return seen_in_events(adapter, client, model)
        length = seen_length(adapter, client, model)
        return Speculation(length or (None if stated.unknown else 0), stated.method, stated.unknown, shown=bool(length))
    except BackendError as error:
        why = str(error).removeprefix(f"{client.url}: ")
        return Speculation(unknown=why if error.hint else f"{why}\n  {ANSWERED}")


def seen_length(adapter: Adapter, client: Client, model: str) -> int | None:
    """The longest draft of a short text by the server's own counts; 0 if there was none."""
    meter = adapter.meter()
    before = meter.read(client)
    short_text(adapter, client, model)
    deadline = time.monotonic() + SETTLE_S
    while (counted := between(before, meter.read(client), client.url).spec) == NOTHING:
        if time.monotonic() > deadline:
            return 0
        time.sleep(0.1)
    return longest(counted)


def seen_in_events(adapter: Adapter, client: Client, model: str) -> Speculation:
    """The speculation that the events of a short text show: none if each has a token. With ids the longest event of a
    longer text is as long as a draft that was accepted.
    """
    sizes, texts, usage = sizes_of_events(adapter, client, model, PROBE_TOKENS)
    if usage is None or not texts:
        lacks = "no usage record" if usage is None else "no text"
        return Speculation(unknown=f"its stream has {texts} texts and {lacks}\n  {NEEDED}")
    if usage.completion + 1 < (came := max(sum(sizes), texts)):
        return Speculation(unknown=f"its usage record says {usage.completion} tokens, and {came} came\n  {NEEDED}")
    if usage.completion < SEVERAL_A_STEP * texts:
        return Speculation(0)
    if len(sizes) < 2:
        return Speculation(unknown=f"{texts} events hold {usage.completion} tokens, so that it speculates")
    with suppress(BackendError):  # its context may be too short for that
        sizes += sizes_of_events(adapter, client, model, LONGER_TOKENS)[0][1:]
    return Speculation(max(sizes[1:]) - 1, shown=True)


def sizes_of_events(adapter: Adapter, client: Client, model: str, tokens: int) -> tuple[list[int], int, Usage | None]:
    """(tokens of each event with ids, events with text, the usage record) of a text. Raises OtherForm."""
    sizes, texts, usage = list[int](), 0, None
    recording, read = short_text(adapter, client, model, tokens)
    for _, event in events(recording.pieces, client.url):
        try:
            chunk = read(event, sum(sizes))
        except (LookupError, TypeError, ValueError) as error:
            raise OtherForm(f"an event in another form: {error}") from error
        sizes += [len(chunk.tokens)] if chunk.tokens else []
        texts += bool(text_in(event))
        usage = chunk.usage or usage
    return sizes, texts, usage


def short_text(adapter: Adapter, client: Client, model: str, tokens: int = PROBE_TOKENS) -> tuple[Recording, Read]:
    """The recording of a short text, which the server goes on with or answers in a chat, and what reads it."""
    limit = StreamLimit.of(tokens, cumulative=adapter.cumulative)
    ask = Ask(model, PROBE, tokens, ignore_eos=True)
    if talks := chats_only(adapter, client, model):
        ask = replace(ask, chat={"messages": [{"role": "user", "content": PROBE}]})
        path, body = chat.PATH, openai.body(ask, **adapter.chat_fields(ask))
    else:
        path, body = adapter.request(ask)
    (recording,) = client.stream(path, [body], limit)
    return recording, chat.read if talks else adapter.read


def chats_only(adapter: Adapter, client: Client, model: str) -> bool:
    """True if the server has no end point for completions."""
    return chat.lacks_completions(client, adapter.request(Ask(model, PROBE, 1, ignore_eos=True))[0], model)


def longest(counts: SpecCounts) -> int:
    """The longest draft of these counts: of the positions that are counted, or as long as the mean at least."""
    return max(len(counts.hist) - 1, -(-counts.drafted // counts.steps)) if counts.steps else 0


def server_tokens(
    server: FoundServer, options: Mapping[str, str], texts: Sequence[TextOrChat]
) -> list[tuple[int, ...]] | None:
    """As `protocols.FindsServers` says."""
    adapter, tokens = adapter_named(server.backend), list[tuple[int, ...]]()
    with connected(server.url, options) as client:
        for number, text in enumerate(texts, 1):
            try:
                ids = adapter.token_ids(client, options.get("model") or server.model, text)
            except BackendError as error:
                message = f"prompt {number} of {len(texts)}, to be made tokens: {error.message}"
                raise BackendError(message, hint=error.hint) from error
            if ids is None:
                return None
            tokens.append(ids)
    return tokens

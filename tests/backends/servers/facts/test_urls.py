"""What answers at a URL: recognised by paths and metrics, described by itself, with its own tokenizer."""

from __future__ import annotations

import socket
from collections import defaultdict
from itertools import chain, repeat

import pytest

from specgate.backends.servers.client import IDS_REFUSED, StreamLimit
from specgate.backends.servers.engines import ANSWERED, NEEDED, connected, find_server, server_tokens
from specgate.contract.protocols import FoundServer
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from tests.backends.servers.helpers import ENGINES, running_stub
from tests.backends.servers.raw_server import answer, raw_server

CHAT = {"messages": [{"role": "user", "content": "ab"}]}
A, B = 2 + ord("a"), 2 + ord("b")
TOKENS = {
    "vllm": [(A, B), (3, A, B, 4)],
    "sglang": [(A, B), (3, A, B, 4)],
    "llamacpp": [(A, B), tuple(2 + byte for byte in b"<user>ab")],
    "lmdeploy": None,
    "trtllm": None,
}
"""The tokens of a text and of a chat, by the tokenizer of the stub: one for each byte, and two around a chat."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_behind_a_gateway_that_renames_it_is_told_by_its_paths_and_counters(name: str) -> None:
    """TensorRT-LLM does not say what it drafts: a short text shows it."""
    with running_stub(name, 3, "--model-name", "prod", "--source", "org/model", "--fault", "gateway") as url:
        server = find_server(url, {})
        assert (server.backend, server.model, server.draft_length) == (name, "prod", 3)
        assert server.source == "org/model"
        assert server_tokens(server, {}, ["ab", CHAT]) == TOKENS[name]


@pytest.mark.parametrize(
    ("k", "fault", "length", "why"),
    [
        (0, "none", 0, None),
        (3, "none", 3, None),
        (0, "no_ids", 0, None),
        (3, "no_ids", None, "9 events hold 24 tokens, so that it speculates"),
    ],
)
def test_a_server_that_nobody_knows_is_one_of_the_openai_format(
    k: int, fault: str, length: int | None, why: str | None
) -> None:
    """Its events are its steps: 24 tokens come in one of the prefill and eight steps."""
    with running_stub("openai", k, "--fault", fault) as url:
        server = find_server(url, {})
    assert (server.backend, server.engine) == ("openai", "an OpenAI-compatible server")
    assert (server.draft_length, server.unknown) == (length, why)
    assert server.shown is bool(length)


def test_a_server_that_seldom_accepts_a_whole_draft_shows_its_length_in_a_longer_text() -> None:
    with running_stub("openai", 5, "--lengths", ",".join(["5:1"] * 20 + ["5:5"])) as url:
        assert find_server(url, {}).draft_length == 5


@pytest.mark.parametrize("short", ["answered", "refused"])
def test_a_server_that_refuses_a_longer_text_shows_what_a_short_one_has(short: str) -> None:
    """A context may be that short. A server that refuses both is named with what is needed."""
    stream = b"".join(
        b'data: {"choices": [{"text": "a", "token_ids": %s}]}\n\n' % ids for ids in (b"[7]", b"[7, 7, 7]")
    )
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 4}}\n\n'
    refused = answer(b"too long", status="400 Bad Request")
    answers = chain([refused, answer(stream + usage) if short == "answered" else refused], repeat(refused))
    paths = {"/v1/models": answer(b'{"data": [{"id": "m"}]}')}

    def answered(path: str) -> list[bytes]:
        return next(answers) if path == "/v1/completions" else paths.get(path, answer(b"", status="404 Not Found"))

    with raw_server(answered) as (url, _):
        server = find_server(url, {})
    why = (server.unknown or "").removeprefix("http").partition("HTTP 400: ")[2]
    expected = (2, "") if short == "answered" else (None, f"too long\n  {ANSWERED}")
    assert (server.draft_length, why) == expected


def test_a_stream_without_usage_or_with_too_little_of_it_is_named_and_no_plain_decoding() -> None:
    def stream(usage: bytes) -> list[bytes]:
        texts = b'data: {"choices": [{"text": "a", "token_ids": [7]}]}\n\n' * 5
        return answer(texts + b'data: {"choices": [], "usage": ' + usage + b"}\n\n")

    for usage, why in (
        (b"null", "its stream has 5 texts and no usage record"),
        (b'{"prompt_tokens": 1, "completion_tokens": 0}', "its usage record says 0 tokens, and 5 came"),
    ):
        paths = {"/v1/models": answer(b'{"data": [{"id": "m"}]}'), "/v1/completions": stream(usage)}
        with raw_server(defaultdict(lambda: answer(b"", status="404 Not Found"), paths).__getitem__) as (url, _):
            unknown = find_server(url, {}).unknown or ""
        assert unknown.splitlines() == [why, f"  {NEEDED}"]


@pytest.mark.parametrize("short", ["taken", "refused"])
def test_a_prompt_that_a_tokenizer_refuses_is_named_and_an_end_point_that_refuses_all_is_no_tokenizer(
    short: str,
) -> None:
    refused, tokens = answer(b"too long", status="413 Content Too Large"), answer(b'{"tokens": [7]}')
    answers = iter([tokens, refused, tokens if short == "taken" else refused])
    with raw_server(lambda path: next(answers)) as (url, _):
        server = FoundServer(url, "openai", "a server", "m")
        if short == "refused":
            assert server_tokens(server, {}, ["ab", "abc"]) is None
            return
        with pytest.raises(BackendError, match=r"^prompt 2 of 2, to be made tokens: .*: HTTP 413: too long"):
            server_tokens(server, {}, ["ab", "abc"])


def test_a_server_that_stalls_is_waited_for_as_long_as_stall_s_says() -> None:
    """The reason names no URL: who prints it has said that."""
    with running_stub("openai", 3, "--fault", "hang") as url:
        server = find_server(url, {"stall_s": "0.5"})
    assert server.unknown == "silent for 0.5 s\n  -o stall_s=SECONDS waits longer"


def test_a_server_that_says_nothing_at_all_is_not_taken_for_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BackendError, match=r"^http://[0-9.:]+: silent for 0.2 s\n  -o stall_s=SECONDS"):
            find_server(url, {"stall_s": "0.2"})


def test_a_port_that_speaks_something_else_than_http_is_not_taken_for_a_closed_one() -> None:
    with (
        raw_server(lambda path: []) as (url, _),
        pytest.raises(BackendError, match=r"^http://.*: who listens there gives no answer in HTTP\n  https://, or"),
    ):
        find_server(url, {})


def test_a_key_that_a_server_refuses_is_not_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_A_KEY", "a-wrong-key-of-nobody")
    refused = pytest.raises(BackendError, match="does not take the key in the variable that -o api_key_env names")
    with raw_server(lambda path: answer(b"who?", status="401 Unauthorized")) as (url, _), refused:
        find_server(url, {"api_key_env": "SPECGATE_A_KEY"})


@pytest.mark.parametrize(
    ("prompt", "reason", "hint"),
    [([7, 8], b"prompt must be a string", IDS_REFUSED), ([7, 8], b"too many tokens", None), ("a", b"no string", None)],
)
def test_a_server_that_takes_no_token_ids_is_told_by_its_words(
    prompt: str | list[int], reason: bytes, hint: str | None
) -> None:
    with (
        raw_server(lambda path: answer(reason, status="400 Bad Request")) as (url, _),
        connected(url, {}) as client,
        pytest.raises(BackendError, match=reason.decode()) as refused,
    ):
        client.stream("/v1/completions", [{"prompt": prompt}], StreamLimit.of(1, cumulative=False))
    assert refused.value.hint == hint


def test_a_key_whose_variable_is_not_set_is_asked_for() -> None:
    with pytest.raises(
        EnvironmentRefused, match=r"api_key_env = SPECGATE_NO_KEY: .*\n  the name of a variable that holds"
    ):
        find_server("http://127.0.0.1:9", {"api_key_env": "SPECGATE_NO_KEY"})


def test_a_wrong_stall_s_is_refused_before_a_url_is_asked() -> None:
    with pytest.raises(UsageError, match="option stall_s = 'long'"):
        find_server("http://127.0.0.1:9", {"stall_s": "long"})


@pytest.mark.parametrize(("name", "most"), [("vllm", None), ("sglang", 8)])
def test_a_server_without_speculation_says_so_and_names_its_limit(name: str, most: int | None) -> None:
    with running_stub(name, 0) as url:
        server = find_server(url, {})
    assert (server.draft_length, server.method, server.max_requests) == (0, None, most)


@pytest.mark.parametrize(
    ("status", "body", "error", "sentence"),
    [
        ("404 Not Found", b"<html>", UsageError, r"no engine that is known: its /v1/models: HTTP 404\n"),
        ("200 OK", b"<html>", UsageError, r"no engine that is known: its /v1/models: not JSON: '<html>'"),
        ("200 OK", b'{"data": []}', UsageError, r"its /v1/models lists no models"),
        ("401 Unauthorized", b"who?", BackendError, r"HTTP 401: who\?\n  name the variable that holds its key"),
        ("307 X\r\nLocation: /login", b"", UsageError, r"its /v1/models: HTTP 307: to /login\n"),
        ("429 Too Many Requests", b"later", BackendError, r"HTTP 429"),
        ("503 Service Unavailable", b"loading", BackendError, r"HTTP 503: loading\n  wait until the server"),
    ],
)
def test_a_url_that_is_no_engine_is_named(status: str, body: bytes, error: type[Exception], sentence: str) -> None:
    with raw_server(lambda path: answer(body, status=status)) as (url, _), pytest.raises(error, match=sentence):
        find_server(url, {})

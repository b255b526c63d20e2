"""Limits on a server's answers: the rest is not read, nothing is followed and nothing is decompressed."""

from __future__ import annotations

import gc
import json
import os
import signal
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.servers.blocks import between
from specgate.backends.servers.client import ANSWER_LIMIT, ERROR_LIMIT, MIB, Client, Recording, StreamLimit
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.events import events
from specgate.backends.servers.exchange import Reading, SpecCounts
from specgate.backends.servers.secrets import Secret
from specgate.backends.servers.server import version_of
from specgate.contract.load import OfferedLoad
from specgate.errors import BackendError
from tests.backends.servers.raw_server import PIECE, Answers, Sent, answer, chunked, endless, raw_server
from tests.support import in_process

HUGE = 300 * MIB
BUFFERED = 16 * MIB
"""What lies in the buffers of both sides when a connection is closed."""


@contextmanager
def client_of(answers: Answers, *, late: bool = False) -> Iterator[tuple[Client, Sent]]:
    with raw_server(answers, late=late) as (url, sent):
        client = Client(url, stall_s=20, secret=Secret())
        try:
            yield client, sent
        finally:
            client.close()


def body_of(length: int) -> Iterable[bytes]:
    return (b" " * PIECE for _ in range(length // PIECE))


def test_a_connection_that_is_closed_after_a_stream_against_its_promise_costs_no_request() -> None:
    """As llama.cpp's are. Prompts are made tokens, and caches dropped, after a stream, too."""
    with client_of(lambda _: chunked([b"{}"]), late=True) as (client, _):
        recordings = client.serve("/x", [{}] * 20, StreamLimit(PIECE, 99), OfferedLoad(clients=1))
        tokens = [client.json("/tokenize", body={}) for _ in range(20)]
    assert len(recordings) == 20 and all(isinstance(recording, Recording) for recording in recordings)
    assert tokens == [{}] * 20


def test_a_request_that_ctrl_c_cuts_short_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def interrupting(path: str) -> Iterator[bytes]:
        os.kill(os.getpid(), signal.SIGINT)
        yield from ()

    with in_process.interruptible(), client_of(interrupting, late=True) as (client, _), suppress(KeyboardInterrupt):
        client.text("/metrics")
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("form", ["with its length", "to the end of the connection", "in chunks"])
def test_a_version_of_300_mb_is_an_error_that_names_url_limit_and_size(form: str) -> None:
    heads = {"with its length": [f"Content-Length: {HUGE}"], "to the end of the connection": []}

    def answers(path: str) -> Iterable[bytes]:
        return chunked(body_of(HUGE)) if form == "in chunks" else endless(b" " * PIECE, HUGE, *heads[form])

    with client_of(answers) as (client, sent), pytest.raises(BackendError) as caught:
        client.json("/version")
    assert f"{client.url}/version" in str(caught.value) and f"at most {ANSWER_LIMIT} are taken" in str(caught.value)
    assert (f"{HUGE} bytes" if form == "with its length" else "more than 8") in str(caught.value)
    assert sent.bytes_of.get("/version", 0) < ANSWER_LIMIT + BUFFERED


def test_an_answer_up_to_the_limit_is_taken() -> None:
    text = "x" * ANSWER_LIMIT
    with client_of(lambda _: answer(text.encode())) as (client, _):
        assert client.text("/metrics") == text


def test_a_health_answer_is_limited_too() -> None:
    with client_of(lambda _: endless(b" " * PIECE, HUGE)) as (client, _), pytest.raises(BackendError, match="/health"):
        client.status("/health")


def test_of_a_long_error_only_the_beginning_is_read() -> None:
    def answers(path: str) -> Iterable[bytes]:
        return endless(b"no! " * 1024, HUGE, status="500 Oops")

    with client_of(answers) as (client, sent), pytest.raises(BackendError, match="HTTP 500: no! no!") as caught:
        client.text("/metrics")
    assert len(str(caught.value)) < 500 and sent.bytes_of.get("/metrics", 0) < ERROR_LIMIT + BUFFERED


def test_a_stream_is_limited_by_the_tokens_that_were_asked_for() -> None:
    limit = StreamLimit.of(10, cumulative=False)
    with (
        client_of(lambda _: endless(b"data: {}\n\n" * 1000, HUGE)) as (client, sent),
        pytest.raises(BackendError, match=f"a stream of more than {limit.size} bytes"),
    ):
        client.stream("/v1/completions", [{}], limit)
    assert sent.bytes_of.get("/v1/completions", 0) < limit.size + BUFFERED


def test_a_stream_of_too_many_pieces_is_an_error() -> None:
    limit = StreamLimit(size=MIB, pieces=0)
    with (
        client_of(lambda _: chunked([b"data"])) as (client, _),
        pytest.raises(BackendError, match=r"or 0 pieces \(4 bytes in 1 so far\)"),
    ):
        client.stream("/v1/completions", [{}], limit)


@pytest.mark.parametrize("new_tokens", [1, 100, 4096])
@pytest.mark.parametrize("cumulative", [False, True])
def test_honest_streams_are_far_below_the_limit(new_tokens: int, cumulative: bool) -> None:
    ids = [128_255] * new_tokens
    sent = (ids[: n + 1] if cumulative else ids[n : n + 1] for n in range(new_tokens))
    size = sum(600 + len(json.dumps(i)) for i in sent)
    limit = StreamLimit.of(new_tokens, cumulative=cumulative)
    assert 2 * size < limit.size and 2 * new_tokens < limit.pieces


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_answers_are_neither_asked_for_nor_taken(encoding: str) -> None:
    bomb = zlib.compress(b" " * (64 * MIB), 9, wbits=31)
    with client_of(lambda _: answer(bomb, f"Content-Encoding: {encoding}")) as (client, sent):
        with pytest.raises(BackendError, match=f"Content-Encoding '{encoding}'"):
            client.text("/metrics")
        with pytest.raises(BackendError, match=f"Content-Encoding '{encoding}'"):
            client.stream("/v1/completions", [{}], StreamLimit.of(1, cumulative=False))
        with pytest.raises(BackendError, match=f"Content-Encoding '{encoding}'"):
            client.status("/health")
    assert all("accept-encoding: identity" in head.lower() for head in sent.heads)


def test_no_redirection_is_followed() -> None:
    def answers(path: str) -> Iterable[bytes]:
        return answer(b"", f"Location: {elsewhere}/stolen", status="302 Found")

    with raw_server(lambda _: answer(b"{}")) as (elsewhere, other), client_of(answers) as (client, _):
        with pytest.raises(BackendError, match=f"HTTP 302: to {elsewhere}/stolen$"):
            client.text("/version")
        with pytest.raises(BackendError, match="HTTP 302"):
            client.stream("/v1/completions", [{}], StreamLimit.of(1, cumulative=False))
        assert client.status("/health") == 302
        assert not other.heads


def test_no_cookie_is_kept() -> None:
    with client_of(lambda _: answer(b"{}", "Set-Cookie: id=1; Path=/")) as (client, sent):
        for _ in range(2):
            client.text("/version")
    assert not any("cookie" in head.lower() for head in sent.heads)


@pytest.mark.parametrize(
    "headers", [["X: " + "x" * 100_000], [f"X-{i}: y" for i in range(100_000)]], ids=["a long one", "many"]
)
def test_a_head_is_limited_in_lines_and_length(headers: list[str]) -> None:
    with client_of(lambda _: answer(b"{}", *headers)) as (client, _), pytest.raises(BackendError) as caught:
        client.text("/version")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"version": "' + b"9" * 5000 + b'"}', "a version of 5000 characters, where at most 200 are taken"),
        (b"[" * 200_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b'{"version": ' + b"1" * 5000 + b"}", "not JSON"),
        (b"{}", "does not tell its version"),
        (b"[1]", "does not tell its version"),
        (b"null", "does not tell its version"),
    ],
)
def test_a_malformed_version_is_a_back_end_error(body: bytes, message: str) -> None:
    with client_of(lambda _: answer(body)) as (client, _), pytest.raises(BackendError, match=message) as caught:
        version_of(adapter_named("vllm"), client, "vllm")
    assert len(str(caught.value)) < 400


def test_an_event_of_many_pieces_takes_time_in_proportion_to_its_size() -> None:
    """Every byte is looked at a few times, not once per piece after it."""
    event = b'data: {"text": "' + b"x" * 200_000 + b'"}\r\n\r\n'
    ((arrived, read),) = events([(i, event[i : i + 1]) for i in range(len(event))], "here")
    assert arrived == len(event) - 2 and len(str(read["text"])) == 200_000


@pytest.mark.parametrize("cut", range(1, 12))
def test_ends_of_events_are_found_wherever_pieces_are_cut(cut: int) -> None:
    data = b'data: {"a": 1}\r\n\r\ndata: {"a": 2}\n\n: alive\n\ndata: {"a":\r\ndata: 3}\r\n\r\n'
    pieces = [(i, data[i : i + cut]) for i in range(0, len(data), cut)]
    assert [event["a"] for _, event in events(pieces, "here")] == [1, 2, 3]


def test_an_error_that_is_cut_off_is_a_broken_connection() -> None:
    def half(path: str) -> Iterator[bytes]:
        yield b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\ntoo busy"

    with client_of(half) as (client, _), pytest.raises(BackendError, match="the connection broke"):
        client.text("/metrics")


# ── counters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("vllm:generation_tokens_total NaN", "vllm:generation_tokens_total = nan is no count"),
        ("vllm:generation_tokens_total -1", "vllm:generation_tokens_total = -1 is no count"),
        ("vllm:generation_tokens_total +Inf", "vllm:generation_tokens_total = inf is no count"),
        ("vllm:generation_tokens_total 1e300", "vllm:generation_tokens_total = 1e\\+300 is no count"),
        ("vllm:request_decode_time_seconds_sum -1", "request_decode_time_seconds_sum = -1 is no time in seconds"),
        ("vllm:request_decode_time_seconds_sum NaN", "request_decode_time_seconds_sum = nan is no time in seconds"),
        ("vllm:num_requests_running NaN", "vllm:num_requests_running = nan is no count"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="999999999999"} 1', "is none below 1024"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="-1"} 1', "is none below 1024"),
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total 1", "is none below 1024"),
    ],
)
def test_what_cannot_be_a_count_is_an_error(sample: str, message: str) -> None:
    name = sample.partition(" ")[0].partition("{")[0]
    needed = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total")
    lines = [*(f"{other} 0" for other in needed if other != name), sample]
    text = "".join(f"{line}\n" for line in lines).encode()
    with client_of(lambda _: answer(text)) as (client, _), pytest.raises(BackendError, match=message):
        adapter_named("vllm").meter().read(client)


COUNTS = st.builds(
    Reading,
    requests=st.none() | st.integers(0, 99),
    generated=st.none() | st.integers(0, 99),
    busy=st.none() | st.integers(0, 9),
    cached=st.none() | st.integers(0, 99),
    spec=st.builds(
        SpecCounts.of_survivals,
        st.integers(0, 99),
        st.integers(0, 99),
        st.integers(0, 99),
        st.lists(st.integers(0, 99), max_size=4).map(lambda n: tuple(sorted(n, reverse=True))),
    ),
)


@given(COUNTS, COUNTS)
def test_counters_that_grew_or_stayed_are_taken_and_their_differences_add_up(first: Reading, more: Reading) -> None:
    def plus(a: int | None, b: int | None) -> int | None:
        return None if a is None else a + (b or 0)

    spec = SpecCounts(
        first.spec.steps + more.spec.steps,
        first.spec.drafted + more.spec.drafted,
        first.spec.accepted + more.spec.accepted,
        tuple(map(sum, zip_longest(first.spec.hist, more.spec.hist, fillvalue=0))),
    )
    later = Reading(
        plus(first.requests, more.requests),
        plus(first.generated, more.generated),
        more.busy,
        plus(first.cached, more.cached),
        spec,
    )
    counted = between(first, later, "here")
    assert counted.generated == (None if first.generated is None else more.generated or 0)
    assert counted.spec.steps == more.spec.steps and counted.busy == more.busy


@given(COUNTS, st.sampled_from(["requests", "generated", "cached", "steps", "drafted", "accepted"]), st.integers(1, 9))
def test_a_counter_that_fell_is_named_with_both_values(later: Reading, fallen: str, by: int) -> None:
    before: Any = asdict(later)
    part = before["spec"] if fallen in before["spec"] else before
    now = part[fallen] or 0
    part[fallen] = now + by
    first = Reading(**{**before, "spec": SpecCounts(**before["spec"])})
    if part is before:  # a counter that was not read has not fallen
        later = Reading(**{**before, fallen: now, "spec": later.spec})
    with pytest.raises(BackendError, match=f"counters fell: .*from {now + by} to {now}"):
        between(first, later, "here")


def test_a_counter_that_is_gone_is_an_error() -> None:
    with pytest.raises(BackendError, match="counters are gone: cached tokens"):
        between(Reading(cached=3), Reading(), "here")

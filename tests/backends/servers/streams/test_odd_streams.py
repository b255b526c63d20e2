"""One answer in the forms in which releases and gateways stream it: all are read as the plain one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, cast

import pytest

from specgate.backends.servers.answers import Answer, understand
from specgate.backends.servers.blocks import refuse_silent
from specgate.backends.servers.client import Recording
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import Ask, Reading
from specgate.contract import BASELINE, Role
from specgate.errors import BackendError

SIZES: Final = (1, 4, 2, 3, 1)
TEXT: Final = "né👍"
USAGE: Final = {"prompt_tokens": 3, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 1}}
Event = dict[str, object]


def chunks() -> list[Event]:
    last = len(SIZES) - 1
    return [
        {"choices": [{"text": TEXT, "token_ids": [7] * n, "finish_reason": "length" if i == last else None}]}
        for i, n in enumerate(SIZES)
    ]


def record(tokens: int = 11) -> Event:
    return {"choices": [], "usage": USAGE | {"completion_tokens": tokens}}


def plain(events: Iterable[Event | str]) -> bytes:
    return "".join(
        f"data: {e if isinstance(e, str) else json.dumps(e, ensure_ascii=False)}\n\n" for e in events
    ).encode()


WHOLE: Final = plain([*chunks(), record(), "[DONE]"])


def with_usage_in_each() -> bytes:
    made = accumulate(SIZES)
    return plain([*(e | {"usage": USAGE | {"completion_tokens": n}} for e, n in zip(chunks(), made, strict=True))])


def between(odd: bytes) -> bytes:
    """`odd` before every event."""
    return b"".join(odd + block + b"\n\n" for block in WHOLE.split(b"\n\n") if block)


FORMS: Final[dict[str, bytes]] = {
    "usage in the last event with choices": plain([*chunks()[:-1], chunks()[-1] | {"usage": USAGE}, "[DONE]"]),
    "usage in each event": with_usage_in_each(),
    "usage of null before": plain([*(e | {"usage": None} for e in chunks()), record()]),
    "usage first": plain([record(), *chunks(), "[DONE]"]),
    "usage after [DONE]": plain([*chunks(), "[DONE]", record()]),
    "usage without choices": plain([*chunks(), {"usage": USAGE}]),
    "choices of null": plain([{"choices": None}, *chunks(), {"choices": None, "usage": USAGE}]),
    "no [DONE]": plain([*chunks(), record()]),
    "no blank line at the end": WHOLE[:-2],
    "no line end, no [DONE]": plain([*chunks(), record()])[:-2],
    "comments": between(b": keep-alive\n\n:\n\n"),
    "empty data": between(b"data: \n\ndata:\n\ndata\n\n"),
    "pings": between(b'event: ping\ndata: {"type": "ping"}\n\n'),
    "pings that are not JSON": between(b"event: heartbeat\ndata: 12:30\n\n"),
    "pings without a name": between(b'data: {"type": "ping"}\n\n'),
    "ids, times and names": between(b"id: 7\nretry: 3000\nevent: message\n"),
    "fields that nobody knows": between(b"x-gateway: eu-1\n"),
    "blank lines": between(b"\n\n\n"),
    "byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "byte order mark and CRLF": b"\xef\xbb\xbf" + WHOLE.replace(b"\n", b"\r\n"),
    "CR": WHOLE.replace(b"\n", b"\r"),
    "CRLF and LF": WHOLE.replace(b"\n\n", b"\r\n\n"),
    "no space": WHOLE.replace(b"data: ", b"data:"),
    "several data lines": WHOLE.replace(b'", "', b'",\ndata: "'),
}


def read(data: bytes, width: int = 1 << 20, new_tokens: int = 11) -> Answer:
    pieces = tuple((1000 * (i + 1), data[i : i + width]) for i in range(0, len(data), width))
    ask = Ask("m", (1, 2, 3), new_tokens, ignore_eos=True)
    return understand(Recording(0, pieces), ask, adapter_named("vllm").read, "here", 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1, 7, 1 << 20])
def test_an_answer_is_read_in_any_form_and_cut_anywhere(form: str, width: int) -> None:
    answer, usual = read(FORMS[form], width), read(WHOLE)
    assert (answer.tokens, answer.finish, answer.times.chunk_tokens) == (usual.tokens, usual.finish, SIZES)
    assert (answer.usage.prompt, answer.usage.completion, answer.usage.cached) == (3, 11, 1)


@pytest.mark.parametrize(
    "event",
    [
        'data: {"error": {"message": "it has gone", "code": 500}}',
        'data: {"error": "it has gone"}',
        'data: {"object": "error", "message": "it has gone", "code": 400}',
        'data: {"type": "error", "message": "it has gone"}',
        "event: error\ndata: it has gone",
        'event: error\ndata: {"detail": "it has gone"}',
        'error: {"message": "it has gone"}',
    ],
)
@pytest.mark.parametrize("end", ["\n\n", "\n", ""])
def test_an_error_within_a_stream_is_named(event: str, end: str) -> None:
    with pytest.raises(BackendError, match=r"here: the server reports an error: .*it has gone"):
        read(plain(chunks()[:2]) + event.encode() + end.encode())


def without(key: str) -> Callable[[], Iterator[Event]]:
    def events() -> Iterator[Event]:
        for event in chunks():
            choices = cast("list[Event]", event["choices"])
            yield {"choices": [{k: v for k, v in choice.items() if k != key} for choice in choices]}

    return events


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (plain(chunks()), "ended after 11 tokens with no usage record"),
        (plain([*without("finish_reason")(), record()]), "ended after 11 tokens with no finish reason"),
        (plain([*without("token_ids")(), record()]), "it counts 11 tokens, and its answer has no token ids"),
        (plain([{"type": "ping"}] * 3), r"0 tokens with no finish reason; 3 events say nothing, as {'type': 'ping'}"),
        (plain([*chunks(), record(12)]), "11 tokens received, but the usage record says 12"),
    ],
)
def test_a_part_that_is_missing_is_named(data: bytes, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        read(data)


@pytest.mark.parametrize(("counted", "interval"), [(True, 1), (None, 1), (False, 9)])
def test_a_server_that_counts_drafts_or_sends_a_token_per_event_is_not_silent(
    counted: bool | None, interval: int
) -> None:
    answer = read(WHOLE) if interval == 1 else one_by_one()
    refuse_silent(Role(3), [answer], Reading(speculative=counted), "here", "the_counter")
    refuse_silent(BASELINE, [read(WHOLE)], Reading(speculative=False), "here", "the_counter")


def test_events_of_several_tokens_without_any_count_of_drafts_name_the_counter_that_is_missing() -> None:
    with pytest.raises(BackendError, match=r"here: the_counter is missing, .* 4 events hold 10 tokens: it may draft"):
        refuse_silent(Role(3), [read(WHOLE)], Reading(speculative=False), "here", "the_counter")


def one_by_one() -> Answer:
    """The answer with each token in an event of its own."""
    choice: Event = {"choices": [{"text": "x", "token_ids": [7]}]}
    last: Event = {"choices": [{"text": "x", "token_ids": [7], "finish_reason": "length"}]}
    return read(plain([*[choice] * 10, last, record()]))

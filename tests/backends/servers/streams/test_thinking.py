"""Thinking is decoded like anything else: the first token of any channel is the first token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.backends.servers.answers import Answer, understand
from specgate.backends.servers.client import Recording
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.events import channel_of
from specgate.backends.servers.exchange import Ask
from specgate.contract import Budget, Role
from specgate.errors import BackendError
from tests.backends.servers.helpers import attached, running_stub

PROMPT = (1, 2, 3)
MS = 1_000_000
Event = dict[str, object]


def chat(delta: Event, ids: Sequence[int] | None, finish: str | None = None) -> Event:
    """A chunk of vLLM 0.25.1's chat stream with `return_token_ids`: the ids stand beside the delta."""
    choice: Event = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice | ({} if ids is None else {"token_ids": list(ids)})]}


def completion(text: str, ids: Sequence[int] | None, finish: str | None = None) -> Event:
    """A chunk of its completion stream. Of gpt-oss, tokens like <|channel|> have ids and no text."""
    choice: Event = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {"object": "text_completion", "choices": [choice | ({} if ids is None else {"token_ids": list(ids)})]}


def usage(completed: int) -> Event:
    return {"choices": [], "usage": {"prompt_tokens": len(PROMPT), "completion_tokens": completed}}


def answer(events: Sequence[Event], number: int) -> Answer:
    """The answer that arrives as one event every millisecond."""
    pieces = tuple(((i + 1) * MS, f"data: {json.dumps(event)}\n\n".encode()) for i, event in enumerate(events))
    ask = Ask("gpt-oss", PROMPT, number, ignore_eos=True)
    return understand(Recording(0, pieces), ask, adapter_named("vllm").read, "here", len(PROMPT))


def test_channels_of_gpt_oss_count_where_their_text_is_empty() -> None:
    result = answer(
        [
            completion("", [200005]),  # <|channel|>
            completion("analysis", [35644]),
            completion("", [200008]),  # <|message|>
            completion("We", [1, 2]),
            completion("", [200007, 200006]),
            completion("Hi", [3], "length"),
            usage(8),
        ],
        8,
    )
    assert result.tokens == (200005, 35644, 200008, 1, 2, 200007, 200006, 3)
    assert result.times.ttft_ns == MS and result.times.e2e_ns == 6 * MS
    assert result.times.chunk_tokens == (1, 1, 1, 2, 2, 1)


@pytest.mark.parametrize("channel", ["reasoning", "reasoning_content"])
def test_deltas_of_thinking_are_tokens_and_the_first_of_them_is_the_first_token(channel: str) -> None:
    result = answer(
        [
            chat({"role": "assistant", "content": ""}, None),
            chat({channel: "We"}, [1]),
            chat({channel: " think"}, [2, 3]),
            chat({"content": "Hi"}, [4], "length"),
            usage(4),
        ],
        4,
    )
    assert result.tokens == (1, 2, 3, 4)
    assert result.times.ttft_ns == 2 * MS, "not the 4 ms of the first content"


@pytest.mark.parametrize("counted", [4, 1])
def test_thinking_without_ids_is_refused_whatever_the_usage_record_counts(counted: int) -> None:
    events = [
        chat({"reasoning_content": "We"}, None),
        chat({"reasoning_content": " think"}, None),
        chat({"content": "Hi"}, [4], "length"),
        usage(counted),
    ]
    with pytest.raises(BackendError, match=r"here: 2 events have text in 'reasoning_content' and no token ids"):
        answer(events, counted)


def test_text_without_ids_is_named_where_the_counts_differ() -> None:
    events = [completion("a", [1]), completion("b", None), completion("c", [3], "length"), usage(3)]
    message = r"2 tokens received, but the usage record says 3 \(1 events with text in 'text' came without token ids\)"
    with pytest.raises(BackendError, match=message):
        answer(events, 3)


def test_text_that_was_held_back_needs_no_ids() -> None:
    """A detokeniser may give the rest of a character at the end, when its tokens have long been counted."""
    assert answer([completion("a", [1, 2]), completion("b", None, "length"), usage(2)], 2).tokens == (1, 2)


VALUES = st.none() | st.text(max_size=3) | st.integers()
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))


@settings(max_examples=40)
@given(NESTED)
def test_whatever_an_event_holds_it_has_a_channel_or_none(value: object) -> None:
    for event in ({"choices": value}, {"choices": [value]}, {"choices": [{"delta": value}]}, {"text": value}):
        assert channel_of(event) in (None, "text", "content", "reasoning", "reasoning_content")


@pytest.mark.slow("starts two servers per test")
@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp"])
def test_no_engine_loses_a_token_that_was_thought(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with (
        running_stub(name, 3, "--rate", "200", "--fault", "thinks=reasoning") as url,
        running_stub(name, 0) as plain,
        attached(tmp_path, pair, name, {"url": url, "url.baseline": plain}) as engine,
    ):
        engine.prefill([PROMPT], draft=True)
        block = engine.decode(Role(3), Budget(steps=20), ())
    assert block.served is not None
    [request] = block.served.requests
    assert len(block.tokens[0]) == sum(request.chunk_tokens) == 21
    assert request.chunk_tokens[0] == 1, "prefill's token came first, as thinking"


@pytest.mark.slow("starts two servers per test")
@pytest.mark.parametrize("name", ["vllm"])
def test_an_engine_that_thinks_without_ids_is_refused(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with (
        running_stub(name, 3, "--fault", "thinks=reasoning_content", "--fault", "thinks_without_ids") as url,
        running_stub(name, 0) as plain,
        attached(tmp_path, pair, name, {"url": url, "url.baseline": plain}) as engine,
    ):
        engine.prefill([PROMPT], draft=True)
        with pytest.raises(BackendError, match="have text in 'reasoning_content' and no token ids"):
            engine.decode(Role(3), Budget(steps=20), ())

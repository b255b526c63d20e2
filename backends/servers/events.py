"""Parse server-sent events from pieces of a stream. An event's time is that of the piece that completed it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.backends.servers.exchange import Json
from specgate.contract.protocols import masked
from specgate.errors import BackendError

Piece = tuple[int, bytes]
"""(nanoseconds, bytes) as read from the connection."""
DONE = "[DONE]"
END = re.compile(rb"\r?\n\r?\n")


def events(pieces: Sequence[Piece], where: str) -> Iterator[tuple[int, Json]]:
    """(nanoseconds, JSON object) of every event, without `[DONE]` and comments.

    Raises BackendError for an event that is not a JSON object, is cut off, or reports an error.
    """
    for arrived, data in data_lines(pieces, where):
        if data == DONE:
            continue
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BackendError(f"{where}: malformed event: {error}: {shown(data)}") from error
        if not isinstance(event, dict):
            raise BackendError(f"{where}: malformed event: no JSON object: {shown(data)}")
        if event.get("error"):
            raise BackendError(f"{where}: the server reports an error: {masked(json.dumps(event['error']))[:300]}")
        yield arrived, event


def data_lines(pieces: Sequence[Piece], where: str) -> Iterator[tuple[int, str]]:
    """(nanoseconds, `data`) of every event. Several data lines of an event are joined, as the format demands."""
    rest = bytearray()
    for arrived, piece in pieces:
        searched = max(0, len(rest) - 3)  # what is before holds no whole end of an event
        rest += piece
        while end := END.search(rest, searched):
            block, searched = bytes(rest[: end.start()]).replace(b"\r\n", b"\n"), 0
            del rest[: end.end()]
            yield from ((arrived, data) for data in data_of(block, where))
    if rest.strip():
        raise BackendError(f"{where}: the stream ends in the middle of an event: {shown(bytes(rest))}")


def whole_answer(pieces: Sequence[Piece], where: str) -> Iterator[tuple[int, Json]]:
    """(nanoseconds, JSON object) of an answer that is not streamed. Raises BackendError where it is no JSON object."""
    data = b"".join(piece for _, piece in pieces)
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BackendError(f"{where}: malformed answer: {error}: {shown(data)}") from error
    if not isinstance(answer, dict):
        raise BackendError(f"{where}: malformed answer: no JSON object: {shown(data)}")
    yield pieces[-1][0], answer


CHANNELS: Final = ("text", "content", "reasoning", "reasoning_content")
"""Keys under which servers stream text. Parsers of a model's thinking (gpt-oss' harmony, `<think>`) put it under one of
its own: `reasoning` (vLLM 0.25) or `reasoning_content` (SGLang 0.5.17, older vLLM, gateways).
"""
THINKING: Final = ("reasoning", "reasoning_content")


def channel_of(event: Json) -> str | None:
    """The key under which an event has text: of the event, its choice, or the delta of that; None where it has none."""
    places: list[object] = [event]
    choices = event.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        places += [choices[0], choices[0].get("delta")]
    channels = (key for place in places if isinstance(place, Mapping) for key in CHANNELS if place.get(key))
    return next(channels, None)


def shown(data: str | bytes) -> str:
    """The beginning of what is malformed. A credential is masked before it is cut."""
    text = data.decode("utf-8", errors="backslashreplace") if isinstance(data, bytes) else data
    return repr(masked(text[:4096])[:80])


def data_of(block: bytes, where: str) -> Iterator[str]:
    try:
        lines = block.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BackendError(f"{where}: malformed event: not UTF-8: {shown(block)}") from error
    fields = [line.partition(":") for line in lines if line and not line.startswith(":")]
    if strangers := [name for name, _, _ in fields if name not in ("data", "event", "id", "retry", "error")]:
        raise BackendError(f"{where}: malformed event: field {masked(strangers[0])[:40]!r} in {shown(block)}")
    for name, _, value in fields:
        if name == "error":
            raise BackendError(f"{where}: the server reports an error: {masked(value.strip())[:300]}")
    data = [value.removeprefix(" ") for name, _, value in fields if name == "data"]
    if data:
        yield "\n".join(data)

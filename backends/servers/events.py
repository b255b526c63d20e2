"""Parse server-sent events from pieces of a stream. An event's time is that of the piece that completed it.

Lines end and fields begin as the WHATWG's standard on server-sent events says. A block without a blank line behind it
counts if it is whole, as the last one of some gateways. Keep-alives of servers and gateways are left out: comments,
empty data, and events named as in `KEEP_ALIVES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.backends.servers.exchange import Json, OtherForm, one_line
from specgate.contract.protocols import masked
from specgate.errors import BackendError

Piece = tuple[int, bytes]
"""(nanoseconds, bytes) as read from the connection."""
DONE = "[DONE]"
LINE_END: Final = r"(?>\r\n|\n|\r)"
END: Final = re.compile(rf"{LINE_END}{LINE_END}".encode())
LONGEST_END: Final = 4
FIELDS: Final = frozenset({"data", "event", "id", "retry", "error"})
"""`error` is llama.cpp's."""
KEEP_ALIVES: Final = frozenset({"ping", "heartbeat", "keepalive", "keep-alive", "keep_alive"})
"""Names of events that keep a connection open, whatever their data."""


def events(pieces: Sequence[Piece], where: str) -> Iterator[tuple[int, Json]]:
    """(nanoseconds, JSON object) of every event, without `[DONE]` and keep-alives.

    Raises BackendError for an event that is not a JSON object, is cut off, or reports an error.
    """
    for arrived, data in data_lines(pieces, where):
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise OtherForm(f"{where}: malformed event: {error}: {shown(data)}") from error
        if not isinstance(event, dict):
            raise OtherForm(f"{where}: malformed event: no JSON object: {shown(data)}")
        if (failure := error_in(event)) is not None:
            raise reported(where, failure)
        yield arrived, event


def error_in(event: Json) -> object:
    """The error that an event reports, in the form of any release; None if it reports none."""
    if event.get("error"):
        return event["error"]
    return event if "error" in (event.get("object"), event.get("type")) else None  # vLLM up to 0.10; gateways


class ReportedError(BackendError):
    """A server reports an error within its stream."""


def reported(where: str, failure: object) -> ReportedError:
    text = failure if isinstance(failure, str) else json.dumps(failure)
    return ReportedError(f"{where}: the server reports an error: {one_line(text, 300)}")


def data_lines(pieces: Sequence[Piece], where: str) -> Iterator[tuple[int, str]]:
    """(nanoseconds, `data`) of every event that carries something. Several data lines of an event are joined."""
    rest = bytearray()
    arrived = 0
    for arrived, piece in pieces:
        searched = max(0, len(rest) - LONGEST_END + 1)  # what is before holds no whole end of an event
        rest += piece
        while end := END.search(rest, searched):
            block, searched = bytes(rest[: end.start()]), 0
            del rest[: end.end()]
            yield from ((arrived, data) for data in data_of(block, where))
    if rest.strip():
        yield from ((arrived, data) for data in unended(bytes(rest), where))


def unended(block: bytes, where: str) -> list[str]:
    """The data of a stream's end without a blank line behind it. Raises BackendError where it is not whole."""
    try:
        data = list(data_of(block, where))
        for text in data:
            json.loads(text)
    except ReportedError:
        raise
    except (BackendError, ValueError, RecursionError) as error:
        raise OtherForm(f"{where}: the stream ends in the middle of an event: {shown(block)}") from error
    return data


def whole_answer(pieces: Sequence[Piece], where: str) -> Iterator[tuple[int, Json]]:
    """(nanoseconds, JSON object) of an answer that is not streamed. Raises BackendError where it is no JSON object."""
    data = b"".join(piece for _, piece in pieces)
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OtherForm(f"{where}: malformed answer: {error}: {shown(data)}") from error
    if not isinstance(answer, dict):
        raise OtherForm(f"{where}: malformed answer: no JSON object: {shown(data)}")
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


def text_in(event: Json) -> str:
    """All text that an event adds, whatever its channel: what a model thinks, and names and arguments of tool calls."""
    choices = event.get("choices")
    place: object = choices[0] if isinstance(choices, list) and choices else event
    if isinstance(place, Mapping) and isinstance(place.get("delta", place.get("message")), Mapping):
        place = place.get("delta", place.get("message"))
    if not isinstance(place, Mapping):
        return ""
    thought = next((place[key] for key in THINKING if place.get(key)), "")
    calls = place.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    called = [f.get(key) for f in functions if isinstance(f, Mapping) for key in ("name", "arguments")]
    parts = (thought, place.get("text"), place.get("content"), *called)
    return "".join(part for part in parts if isinstance(part, str))


def shown(data: str | bytes) -> str:
    """The beginning of what is malformed. A credential is masked before it is cut."""
    text = data.decode("utf-8", errors="backslashreplace") if isinstance(data, bytes) else data
    return repr(masked(text[:4096])[:80])


def data_of(block: bytes, where: str) -> Iterator[str]:
    """The data of one event; nothing for a comment, a keep-alive, empty data and `[DONE]`.

    Fields without a meaning are ignored beside data; without any, the block is not an event. Raises BackendError.
    """
    try:
        text = block.decode("utf-8-sig")  # some gateways send a byte order mark
    except UnicodeDecodeError as error:
        raise OtherForm(f"{where}: malformed event: not UTF-8: {shown(block)}") from error
    lines = re.split(LINE_END, text)
    fields = [(name, value.removeprefix(" ")) for name, _, value in (line.partition(":") for line in lines) if name]
    data = "\n".join(value for name, value in fields if name == "data")
    kind = next((value.strip() for name, value in reversed(fields) if name == "event"), "")
    for name, value in fields:
        if name == "error" or (kind == "error" and name == "data"):
            raise reported(where, data if kind == "error" else value)
        if name not in FIELDS and not data:
            raise OtherForm(f"{where}: malformed event: field {masked(name)[:40]!r} in {shown(block)}")
    if data.strip() not in ("", DONE) and kind not in KEEP_ALIVES:
        yield data

"""Server-sent events, whole and torn, against events that were written by a program."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.servers.events import events
from specgate.errors import BackendError

objects = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3).filter(
    lambda d: "error" not in d
)


@given(st.lists(objects, max_size=6), st.integers(1, 40), st.sampled_from(["\n", "\r\n"]))
def test_events_survive_any_cut_and_come_when_they_are_whole(
    sent: list[dict[str, object]], width: int, end: str
) -> None:
    blocks = [f"data: {json.dumps(event)}{end}{end}".encode() for event in sent]
    data = b"".join(blocks) + f": a comment{end}{end}data: [DONE]{end}{end}".encode()
    pieces = [(start + width, data[start : start + width]) for start in range(0, len(data), width)]
    results = list(events(pieces, "here"))
    assert [event for _, event in results] == sent
    whole_after = 0
    for (arrived, _), block in zip(results, blocks, strict=True):
        whole_after += len(block)
        # A carriage return ends a line, whether a line feed follows or not.
        assert arrived > whole_after - len(end) and arrived - whole_after < width + len(end)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'data: {"a": 1}\n\ndata: {"b"', "ends in the middle of an event"),
        (b'data: {"a": \n\n', "malformed event"),
        (b"data: [1]\n\n", "no JSON object"),
        (b"data: \xff\n\n", "not UTF-8"),
        (b"<html>\n\n", "malformed event: field '<html>'"),
        (b'data: {"error": {"message": "gone"}}\n\n', "reports an error"),
        (b'error: {"message": "gone"}\n\n', "reports an error"),
    ],
)
def test_what_is_no_event_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        list(events([(0, data)], "here"))

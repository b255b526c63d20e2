"""Chrome traces with events that cannot be read: these are counted with their cause, and the others are read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from specgate.analysis.traces.document import LONGEST_VALUE, TraceDocument
from specgate.analysis.traces.recording import Malformed
from specgate.analysis.traces.steps import Loop, loop_of
from specgate.analysis.traces.trace_file import read_trace
from tests.support.traces import FLASH, GEMM, vllm_loop

EVENTS = [{"ph": "X", "name": "a"}, {"ph": "X", "name": "b", "args": {"x": [{"name": 1}]}}, {"ph": "M"}]


def events_of(text: str) -> list[Any]:
    return list(TraceDocument(io.StringIO(text)).events())


@pytest.mark.parametrize("end", ["]", ",]", " , ", "", "\n"])
def test_a_list_may_end_in_a_comma_or_without_its_bracket(end: str) -> None:
    document = TraceDocument(io.StringIO(json.dumps(EVENTS)[:-1] + end))
    assert list(document.events()) == EVENTS and document.unclosed == (not end.endswith("]"))


@pytest.mark.parametrize(
    ("text", "name"), [('[{"name": "run\x01\tx\x00"}]', "run\x01\tx\x00"), (r'[{"name": "C:\\x"}, ]', r"C:\x")]
)
def test_control_characters_in_a_name_and_a_comma_too_many_lose_nothing(text: str, name: str) -> None:
    assert events_of(text) == [{"name": name}]


# What that means for the figures


def loop_with(folder: Path, *broken: str) -> Loop:
    text = vllm_loop(steps=4).write_chrome(folder / "whole.json").read_text()
    at = text.index('{\n   "ph": "X",\n   "cat": "kernel"')
    (file := folder / "trace.json").write_text(text[:at] + "".join(f"{event},\n" for event in broken) + text[at:])
    return loop_of(read_trace(file))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"dur": None}, "dur: None: microseconds are needed"),
        ({"dur": -5.0}, "lasts -5.0 µs: times of 0 or more are needed"),
        ({"ts": -5.0}, "it begins at -5.0 µs and"),
        ({"ts": float("nan")}, "ts: None: microseconds are needed"),
        ({"ts": 1_795_398_352_000_000_000}, "(nanoseconds?)"),
        ({"name": None}, "name: None: a text is needed"),
        ({"ph": "E"}, "it ends and has not begun"),
        ({"ph": "b"}, "ph: 'b'"),
    ],
)
def test_an_event_without_sense_is_counted_with_its_cause(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 150.0, "dur": 1.0, **changes}
    loop = loop_with(tmp_path, json.dumps(event), json.dumps(event))
    assert "2 events are left out" in (loop.why_not("work") or "") and cause in (loop.why_not("work") or "")
    assert loop.kernels == {FLASH: 3, GEMM: 3}


def test_times_as_text_and_events_that_begin_and_end_are_read_like_others(tmp_path: Path) -> None:
    made = vllm_loop(steps=4).chrome()
    whole: list[dict[str, Any]] = [event for event in made["traceEvents"] if event["ph"] == "X"]  # type: ignore[attr-defined]
    expected = loop_of(read_trace(written(tmp_path, whole)))
    texts = [{**event, "ts": str(event["ts"]), "dur": str(event["dur"])} for event in whole]
    assert loop_of(read_trace(written(tmp_path, texts))) == expected
    ends = [{"ph": "E", "ts": e["ts"] + e["dur"], "pid": e["pid"], "tid": e["tid"]} for e in whole]
    begins = [{key: value for key, value in {**event, "ph": "B"}.items() if key != "dur"} for event in whole]
    both = [event for pair in zip(begins, ends, strict=True) for event in pair]
    assert loop_of(read_trace(written(tmp_path, both))) == expected
    assert "begins and does not end" in (loop_of(read_trace(written(tmp_path, [*whole, begins[-1]]))).partial or "")


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    (file := folder / "events.json").write_text(json.dumps({"traceEvents": events}))
    return file


def test_a_list_without_its_end_holds_no_invariant_but_has_figures(tmp_path: Path) -> None:
    events = vllm_loop(steps=4).chrome()["traceEvents"]
    (file := tmp_path / "trace.json").write_text(json.dumps(events)[:-1])
    loop = loop_of(read_trace(file))
    assert loop.why_not("work") is loop.why_not("calls") is None
    assert loop.partial == "the list of events has no last bracket: the file may be cut off"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ('{"name": "x"y"}', "Expecting ',' delimiter near"),
        (r'{"name": "C:\cuda"}', r"Invalid \\?escape"),
        ("{]", "Expecting property name"),
        ('{"a": 1', "Expecting property name"),
    ],
)
@pytest.mark.parametrize("behind", [1, LONGEST_VALUE], ids=["short", "long"])
def test_text_that_is_no_json_is_refused_with_its_place_however_much_follows(
    broken: str, why: str, behind: int
) -> None:
    with pytest.raises(Malformed, match=f"after 2 events: .*{why}"):
        events_of(f'[{{"ph": "M"}}, {broken}, {{"ph": "M"}}, {{"name": "{"x" * behind}"}}]')


@pytest.mark.parametrize("size", range(1, 40))
def test_where_a_piece_ends_changes_nothing(size: int) -> None:
    text = r'[{"name": "\ud83d\ude00 \"x\"", "n": -1.5e-7, "t": true, "z": [null, {}]}, {"ph": "M"}]'

    class Pieces(io.StringIO):
        def read(self, _: int | None = -1, /) -> str:
            return super().read(size)

    assert list(TraceDocument(Pieces(text)).events()) == json.loads(text)

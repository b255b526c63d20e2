"""Chrome traces whose text is broken in places: what can be read is read, and the rest is counted with its cause."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.traces.document import Broken, TraceDocument
from specgate.analysis.traces.steps import Loop, loop_of
from specgate.analysis.traces.trace_file import read_trace
from tests.support.traces import FLASH, GEMM, vllm_loop

EVENTS = [{"ph": "X", "name": "a"}, {"ph": "X", "name": "b", "args": {"x": [{"name": 1}]}}, {"ph": "M"}]
QUOTED = '{"ph": "X", "cat": "%s", "name": "{"device": "cpu"}(12): run", "pid": 1, "tid": 1, "ts": 101.0, "dur": 2}'


def events_of(text: str) -> list[Any]:
    return list(TraceDocument(io.StringIO(text)).events())


@settings(max_examples=60)
@given(st.integers(0, 3), st.booleans(), st.sampled_from(['"a" "', "{]", '{"name": "x"y"}', '{"a": 1,}', '{"a" 1}']))
def test_of_broken_text_between_events_nothing_but_itself_is_lost(at: int, within: bool, broken: str) -> None:
    pieces = [json.dumps(event) for event in EVENTS]
    pieces.insert(at, broken if broken.endswith("}") else f'{{"name": {broken}}}')
    text = ", ".join(pieces)
    read = events_of(f'{{"traceEvents": [{text}], "end": 1}}' if within else f"[{text}]")
    assert [event for event in read if not isinstance(event, Broken)] == EVENTS
    assert [event.number for event in read if isinstance(event, Broken)] == [at + 1]


@pytest.mark.parametrize("end", ["]", ",]", " , ", "", "\n"])
def test_a_list_may_end_in_a_comma_or_without_its_bracket(end: str) -> None:
    document = TraceDocument(io.StringIO(json.dumps(EVENTS)[:-1] + end))
    assert list(document.events()) == EVENTS and document.unclosed == (not end.endswith("]"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[{"name": "run\x01\tx\x00"}]', "run\x01\tx\x00"),
        (r'[{"name": "torch\cuda\__init__.py \u0041\usr"}]', r"torch\cuda\__init__.py A\usr"),
        (r'[{"name": "C:\\x\d"}, ]', r"C:\x\d"),
    ],
)
def test_control_characters_and_single_backslashes_in_a_name_lose_nothing(text: str, name: str) -> None:
    assert events_of(text) == [{"name": name}]


# What that means for the figures


def loop_with(folder: Path, *broken: str, cut: int = 0) -> Loop:
    text = vllm_loop(steps=4).write_chrome(folder / "whole.json").read_text()
    at = text.index('{\n   "ph": "X",\n   "cat": "kernel"')
    (file := folder / "trace.json").write_text(text[:at] + "".join(f"{event},\n" for event in broken) + text[at:])
    return loop_of(read_trace(file))


def test_a_broken_event_of_no_interest_is_counted_and_leaves_the_figures(tmp_path: Path) -> None:
    for count, events in ((1, [QUOTED % "python_function"]), (2, [QUOTED % "cpu_op"] * 2)):
        loop = loop_with(tmp_path, *events)
        assert loop.kernels == {FLASH: 3, GEMM: 3} and loop.partial is None
        assert loop.notes[0].startswith(f"{count} event") and "Expecting ',' delimiter" in loop.notes[0]


@pytest.mark.parametrize(
    ("category", "kernels", "waits"),
    [
        ("kernel", False, True),
        ("gpu_memcpy", False, True),
        ("cuda_runtime", True, False),
        ("user_annotation", False, False),
        ("something_new", False, False),
    ],
)
def test_a_broken_event_that_may_count_leaves_its_figures_not_observable(
    tmp_path: Path, category: str, kernels: bool, waits: bool
) -> None:
    loop = loop_with(tmp_path, QUOTED % category)
    assert (loop.why_not("work") is None, loop.why_not("calls") is None) == (kernels, waits)
    assert "1 event is left out" in (loop.partial or "")


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

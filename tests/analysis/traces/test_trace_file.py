"""Trace files of two profilers, read; and everything that is no trace, refused."""

from __future__ import annotations

import gzip
import io
import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.traces import document, trace_file
from specgate.analysis.traces.document import TraceDocument
from specgate.analysis.traces.recording import Malformed
from specgate.analysis.traces.steps import loop_of
from specgate.analysis.traces.trace_file import read_trace
from specgate.errors import UsageError
from tests.support.traces import FLASH, GEMM, H200, IDS_TO_HOST, US, Timeline, nsys_file, vllm_loop

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=6) | st.floats(-1e6, 1e6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def test_vllms_trace_has_its_whole_decode_steps_and_nothing_of_the_prefill(tmp_path: Path) -> None:
    recording = read_trace(vllm_loop(steps=9).write_chrome(tmp_path / "rank0.pt.trace.json.gz"))
    loop = loop_of(recording)
    assert (recording.profiler, recording.devices) == ("torch profiler", (H200,))
    assert loop.steps == 8 and loop.unseen is None
    assert loop.kernels == {FLASH: 8, GEMM: 8}
    assert loop.kernel_ns == {FLASH: 8 * 60 * US, GEMM: 8 * 20 * US}
    assert loop.copies == {IDS_TO_HOST: 8}
    assert loop.calls == {"cudaEventSynchronize": 8, "cudaGraphLaunch": 8, "cudaMemcpyAsync": 8}
    assert loop.figures is not None
    assert (loop.figures.bytes_to_host, loop.figures.waits_elsewhere) == (64, 8)
    assert (loop.figures.window_ns, loop.figures.busy_ns) == (8 * 100 * US - 12 * US, 8 * 82 * US)
    assert (loop.figures.gaps, loop.figures.longest_gap_ns) == (8 + 8 + 7, 12 * US)


def test_an_export_of_nsys_says_the_same_as_the_trace_of_torchs_profiler(tmp_path: Path) -> None:
    made = vllm_loop(steps=5, requests=4)
    chrome = loop_of(read_trace(made.write_chrome(tmp_path / "a.json")))
    nsys = loop_of(read_trace(made.write_nsys(tmp_path / "a.sqlite")))
    numbers = {name: getattr(chrome.window, name) for name in ("thread", "threads", "run")}  # each has its own
    assert replace(nsys, profiler=chrome.profiler, window=replace(nsys.window, **numbers)) == chrome
    recording = read_trace(tmp_path / "a.sqlite")
    assert (recording.profiler, recording.devices) == ("nsys", (H200,))


def test_a_trace_that_torch_itself_has_written_is_read(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            with torch.profiler.record_function("execute_context_0(0)_generation_1(4)"):
                torch.ones(3).sum()
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    recording = read_trace(tmp_path / "trace.json.gz")
    loop = loop_of(recording)
    assert [mark.name for mark in recording.marks] == ["execute_context_0(0)_generation_1(4)"] * 4
    assert loop.steps == 3 and loop.unseen is not None
    assert [doubt.about for doubt in loop.doubts] == ["work", "calls"], "no category is unknown"


@settings(max_examples=40)
@given(st.lists(JSON, max_size=6), st.dictionaries(st.text(max_size=4), JSON, max_size=3))
def test_events_and_facts_are_those_of_the_whole_document(listed: Any, beside: Any) -> None:
    document = TraceDocument(io.StringIO(json.dumps({**beside, "traceEvents": listed, "traceName": 12})))
    assert list(document.events()) == listed
    assert document.facts == {**beside, "traceName": 12}
    assert list(TraceDocument(io.StringIO(json.dumps(listed, indent=2))).events()) == listed


def test_numbers_that_json_does_not_have_are_no_values_wherever_a_piece_of_the_text_ends() -> None:
    odd = [{"name": f"{'x' * pad} NaN", "args": [math.nan, {"a": math.inf, "b": -math.inf}]} for pad in range(60)]
    text = Slowly(json.dumps({"traceEvents": odd, "end": math.nan}))
    document = TraceDocument(text)
    assert [*document.events()] == [{**event, "args": [None, {"a": None, "b": None}]} for event in odd]
    assert document.facts == {"end": None}


class Slowly(io.StringIO):
    """Gives 7 characters at a time, however many are wanted."""

    def read(self, size: int | None = 7, /) -> str:
        return super().read(min(7, 7 if size is None else size))


@settings(max_examples=40)
@given(st.data())
def test_a_document_that_ends_too_early_is_malformed(data: st.DataObject) -> None:
    text = json.dumps(vllm_loop(steps=1).chrome())
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(Malformed, match=r"after \d+ events: "):
        list(TraceDocument(io.StringIO(cut)).events())


def write(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def event(**changes: object) -> str:
    made = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 2, "args": {"correlation": 1}, **changes}
    return json.dumps({"traceEvents": [made]})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "the file is empty"),
        ("a.json", "plain text", "it begins with b'plain te'"),
        ("a.json", '{"events": []}', "no list traceEvents among the keys events"),
        ("a.json", '{"traceEvents": 3}', "traceEvents is not a list"),
        ("a.json", '{"traceEvents": [] } x', "after 0 events: there is text behind the document"),
        (
            "a.json",
            '{"traceEvents": [{"ph": "M"}',
            "after 1 events: the file ends within the list of events: it is cut off",
        ),
        ("a.json", '[{"ph": "M"}, {"ph": "X", "na', "after 2 events: cut off here, or no JSON: Unterminated string"),
        ("a.json", '{"traceEvents": 3, "traceEvents": []}', "traceEvents is not a list"),
        ("a.json", '{"traceEvents": [], "traceEvents": []}', "traceEvents is there twice"),
        ("a.json", b"\x28\xb5\x2f\xfd...", "it is packed by zstd: unpack it first"),
        ("a.json", '[{}, {"name": "{"device": 1}"}]', 'Expecting \',\' delimiter near {"name": "{"device": 1}'),
        ("a.json", '[{"ph": ' + "9" * 5_000 + "}]", "Exceeds the limit (4300 digits)"),
        ("a.json", "[1e99999999999999999999]", "event 1 is not an object: inf"),
        ("a.json", '{"traceEvents": ["text"]}', "event 1 is not an object: 'text'"),
        ("a.json", event(ts="soon"), "event 1 ('k'): ts: 'soon': microseconds are needed"),
        ("a.json", event(dur=-1), "lasts -1 µs: times of 0 or more are needed"),
        ("a.json", event(dur=True), "dur: True"),
        ("a.json", event(name=7), "name: 7: a text is needed"),
        ("a.json", event(ts=1e300), "ts: 1e+300: microseconds are needed"),
        ("a.json", event(ts=1_795_398_352_000_000_000), "no event does (nanoseconds?)"),
        ("a.json", event().replace("1.5", "1e400"), "ts: inf: microseconds are needed"),
        ("a.json", "[" * 100_000, "too many lists and objects within each other"),
        ("a.json.gz", gzip.compress(event().encode(), mtime=0)[:-12], "Compressed file ended"),
        ("a.json.gz", b"\x1f\x8b" + b"nonsense" * 4, "Unknown compression method"),
        ("a.nsys-rep", b"\x00\x01binary", "nsys export --type sqlite a.nsys-rep"),
        ("a.sqlite", b"SQLite format 3\x00" + b"rubbish" * 100, "the database cannot be read"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_file_and_the_reason(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    file = write(tmp_path / name, content)
    with pytest.raises(UsageError) as refused:
        read_trace(file)
    assert str(file) in str(refused.value) and message in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        read_trace(tmp_path / "none.json")


def test_a_trace_that_unpacks_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MOST_BYTES", 5_000)
    file = vllm_loop(steps=20).write_chrome(tmp_path / "a.json.gz")
    assert file.stat().st_size < 5_000
    with pytest.raises(UsageError, match="more than 5,000 bytes: trace fewer steps"):
        read_trace(file)


def test_a_single_event_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LONGEST_VALUE", 5_000)
    with pytest.raises(UsageError, match="one value of more than 5,000 characters"):
        read_trace(write(tmp_path / "a.json", event(name="x" * 200_000)))


# nsys


def test_graphs_that_nsys_traced_as_one_piece_are_named(tmp_path: Path) -> None:
    table = "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start integer, end integer, graphId integer)"
    row = "insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (1, 2, 3)"
    file = nsys_file(Timeline(), tmp_path / "a.sqlite", table, row)
    why = loop_of(read_trace(file)).why_not("work") or ""
    assert "1 CUDA graphs were traced as one piece each" in why and "--cuda-graph-trace=node" in why


def test_a_database_without_texts_is_refused_with_the_tables_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"without the table StringIds, .*: it has CUPTI_ACTIVITY_KIND_KERNEL, "):
        read_trace(nsys_file(Timeline(), tmp_path / "a.sqlite", "drop table StringIds"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("(1, 2, 0, 3, 4, 99, 0)", "RUNTIME.nameId: StringIds has no such text as 99"),
        ("(5, 2, 0, 3, 4, 'cudaFree', 0)", "RUNTIME: a row from 5 to 2"),
        ("(null, 2, 0, 3, 4, 'cudaFree', 0)", "RUNTIME: a row from None to 2"),
        ("('soon', 2.5, 0, 3, 4, 'cudaFree', 0)", "RUNTIME: a row from soon to 2.5"),
    ],
)
def test_a_row_that_cannot_be_read_is_counted_and_its_figures_are_not_observable(
    tmp_path: Path, row: str, reason: str
) -> None:
    insert = f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values {row}"
    loop = loop_of(read_trace(nsys_file(vllm_loop(steps=4), tmp_path / "a.sqlite", insert)))
    why = loop.why_not("calls") or ""
    assert why.startswith("1 row is left out, the first: ") and reason in why
    assert loop.why_not("work") is None and loop.kernels == {FLASH: 3, GEMM: 3}


def test_two_processes_with_the_same_numbers_are_kept_apart(tmp_path: Path) -> None:
    """Correlation numbers count within a process."""
    file = vllm_loop(steps=3).write_nsys(tmp_path / "a.sqlite", process=1)
    with closing(sqlite3.connect(file)) as db:
        row = db.execute("select correlationId from CUPTI_ACTIVITY_KIND_RUNTIME where start > 100000").fetchone()
        db.execute(
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME select 100001, 100002, 0, 2 << 24, ?, nameId, 0 "
            "from CUPTI_ACTIVITY_KIND_RUNTIME limit 1",
            row,
        )
        db.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL select 900000, 900001, 0, 1, 1, ?, 2 << 24, demangledName, "
                   "shortName from CUPTI_ACTIVITY_KIND_KERNEL limit 1", row)  # fmt: skip
        db.commit()
    recording = read_trace(file)
    numbers = [call.correlation for call in recording.calls]
    assert len(set(numbers)) == len(numbers)

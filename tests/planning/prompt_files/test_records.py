from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.errors import UsageError
from specgate.planning.prompt_files.records import LONGEST, content_of, records_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=5)
PATH = Path("prompts.jsonl")


def read(content: bytes) -> list[Any]:
    return [dict(record.data) for record in records_of(PATH, content)]


def refused(content: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        read(content)
    return str(caught.value)


@settings(max_examples=30)
@given(OBJECTS, st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]), st.booleans(), st.booleans(), st.booleans())
def test_lines_that_json_wrote_are_read_back_whatever_ends_or_surrounds_them(
    objects: list[dict[str, Any]], end: bytes, bom: bool, ascii_: bool, packed: bool
) -> None:
    text = b"".join(json.dumps(o, ensure_ascii=ascii_).encode() + end for o in objects)
    content = (b"\xef\xbb\xbf" if bom else b"") + text
    assert read(gzip.compress(content, 1, mtime=0) if packed else content) == objects


@settings(max_examples=30)
@given(OBJECTS)
def test_a_list_of_objects_says_the_same_as_lines(objects: list[dict[str, Any]]) -> None:
    assert read(json.dumps(objects, indent=1).encode()) == objects


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: b'{"text": "' + b + b'"}\n'))
def test_whatever_the_bytes_are_they_are_records_or_refused_by_name(content: bytes) -> None:
    try:
        for record in records_of(PATH, content):
            assert isinstance(record.data, dict)
    except UsageError as error:
        assert str(error).startswith("prompts.jsonl")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1}\n\n[1]\n', "prompts.jsonl:3: [1]: not a JSON object"),
        (b'{"a": 1}\r\nplain text\r\n', "prompts.jsonl:2: not JSON"),
        (b'{"a": NaN}', "prompts.jsonl:1: not JSON: NaN is not a number of JSON"),
        (b'{"a": 1e999}', "prompts.jsonl:1: not JSON: 1e999 is too large"),
        (b'{"a": "\\ud800"}', "prompts.jsonl:1: not JSON: half a surrogate pair"),
        (b'{"a": 1}\n{"a": "\xe4"}', "prompts.jsonl:2: not UTF-8 at byte 8: 0xe4"),
        ('{"a": 1}'.encode("utf-16"), "prompts.jsonl: UTF-16 text"),
        (b'[{"a": 1}, 2]', "prompts.jsonl[1]: 2: not a JSON object"),
        (b'[{"a": 1}', "prompts.jsonl: not JSON"),
        (b"\x1f\x8b\x08 and then nothing of gzip", "prompts.jsonl: not whole"),
        (gzip.compress(b'{"a": 1}' * 50, mtime=0)[:-9], "prompts.jsonl: not whole"),
        (b'{"a": ' + b"[" * 100_000, "prompts.jsonl:1: not JSON: more than 64 levels deep"),
    ],
)
def test_what_is_no_record_is_named_with_file_and_line(content: bytes, says: str) -> None:
    assert says in refused(content)


def test_a_line_of_300_megabytes_is_refused_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "huge.jsonl"
    with file.open("wb") as stream:
        stream.write(b'{"text": "first"}\n{"text": "')
        stream.truncate(300 << 20)
    records = records_of(file, content_of(file))
    assert next(records).data == {"text": "first"}
    with pytest.raises(UsageError, match=f"huge.jsonl:2: a line of more than {LONGEST} bytes"):
        next(records)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path, "not a file: it is a folder, a pipe or a device"),
        (tmp_path / "pipe", "not a file: it is a folder, a pipe or a device"),
        (Path("/dev/zero"), "not a file: it is a folder, a pipe or a device"),
        (tmp_path / "none.jsonl", "no such file"),
        (tmp_path / ("n" * 300), "cannot be read"),
        (tmp_path / "a\0b", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=says):
            content_of(path)

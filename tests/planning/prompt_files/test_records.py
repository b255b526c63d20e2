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
from specgate.planning.prompt_files.records import LONGEST, content_of, is_plain, plain_records_of, records_of

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
        (b'{"a": 1}\n\n1\n', "prompts.jsonl:3: 1: not a JSON object"),
        (b'{"a": 1}\r\nplain text\r\n', "prompts.jsonl:2: not JSON"),
        (b'{"a": NaN}', "prompts.jsonl:1: not JSON: NaN is not a number of JSON"),
        (b'{"a": 1e999}', "prompts.jsonl:1: not JSON: 1e999 is too large"),
        (b'{"a": "\\ud800"}', "prompts.jsonl:1: not JSON: half a surrogate pair"),
        (b'{"a": 1}\n{"a": "\xe4"}', "prompts.jsonl:2: not UTF-8 at byte 8: 0xe4"),
        ('{"a": 1}'.encode("utf-16"), "prompts.jsonl: UTF-16 text"),
        ('{"a": 1}'.encode("utf-16-le"), "prompts.jsonl: UTF-16 text"),
        (b"\x28\xb5\x2f\xfd\x04", "prompts.jsonl: a file compressed with zstd"),
        (b'{"a": 1\0}', "prompts.jsonl:1: not JSON"),
        (b'{\n"a": 1,\n}', "prompts.jsonl:1: not JSON"),
        (b'{"a": 1}\n{"a": 1\n{"a": 2}\n', "prompts.jsonl:2: not JSON: Expecting ',' delimiter: column 8\n"),
        (b'[{"a": 1},\n2,\n', "prompts.jsonl: not JSON: Expecting value: line 2, column 3\n"),
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


@pytest.mark.parametrize(
    "content",
    [
        b'["Why?", [1, 2], {"a": 1}]',
        b'"Why?"\n[1, 2]\n{"a": 1}\n',
        b'{"version": 1, "data": ["Why?", [1, 2], {"a": 1}]}',
        json.dumps({"prompts": ["Why?", [1, 2], {"a": 1}]}, indent=1).encode(),
    ],
)
def test_texts_and_lists_are_records_too_and_one_object_may_hold_them(content: bytes) -> None:
    assert read(content) == [{"prompt": "Why?"}, {"prompt": [1, 2]}, {"a": 1}]


def test_a_file_of_one_object_or_of_lists_below_each_other_is_read_line_by_line() -> None:
    assert read(b'{"a": [1]}\n') == [{"a": [1]}]
    assert read(b"[1, 2]\n[3]\n") == [{"prompt": [1, 2]}, {"prompt": [3]}]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.csv", b"prompt,category\nWhy?,a\n", r"p\.csv: a table \(\.csv\)"),
        ("p.TSV", b"prompt\tcategory\nWhy?\ta\n", r"p\.TSV: a table \(\.TSV\)"),
        ("p.yaml", b"prompts:\n  - Why?\n", r"p\.yaml: YAML \(\.yaml\)\n.*--format plain-lines"),
        ("p.md", b"# Prompts\n\n- Why?\n", r"p\.md: Markdown"),
        ("p.py", b"prompts = ['Why?']\n", r"p\.py: Python"),
    ],
)
def test_a_table_is_not_taken_for_plain_lines(name: str, content: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        is_plain(Path(name), content)


def test_a_nul_character_is_no_plain_text() -> None:
    with pytest.raises(UsageError, match=r"p\.txt:2: a NUL character at byte 3"):
        list(plain_records_of(Path("p.txt"), b"Why is this?\nSo\0\n"))


def test_files_with_marks_that_were_put_together_are_read() -> None:
    part = b'\xef\xbb\xbf{"a": 1}\r\n'
    assert read(part + part) == [{"a": 1}, {"a": 1}]

"""JSON from others: the values of JSON come back, and what JSON does not have is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.files.json_text import DEEPEST, parse_json, read_json, shown

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_json_can_hold_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NaN", "NaN is not a number of JSON"),
        ('{"a": [-Infinity]}', "-Infinity is not a number"),
        ("[1e999]", "1e999 is too large for a float"),
        ("1" * 5000, "4300 digits"),
        ("[" * 100_000, "levels deep"),
        ("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "more than 64 levels deep"),
        ('{"a": "\\ud800"}', "half a surrogate pair: '\\ud800'"),
        ('{"\\udc00": 1}', "half a surrogate pair"),
        (b'"caf\xe9"', "can't decode byte 0xe9"),
        ("", "Expecting value"),
    ],
)
def test_what_json_does_not_have_is_refused(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).*") as caught:
        parse_json(text)
    assert says in str(caught.value)


def test_pairs_of_surrogates_are_characters_and_wide_texts_are_not_deep() -> None:
    assert parse_json('"\\ud83d\\udc4d"') == "👍"
    assert parse_json("[" + "[]," * 500 + "[]]") == [[]] * 501


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (file := tmp_path / "a.json").write_text("[1, 2, 3]")
    assert read_json(file) == [1, 2, 3]
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_json(file, 5)


def test_a_value_in_a_message_is_one_short_printable_line() -> None:
    assert shown("a\n\x1b[31m") == r"'a\n\x1b[31m'"
    assert len(shown("x" * 500)) == 80 and shown(10**5000) == "a number of thousands of digits"

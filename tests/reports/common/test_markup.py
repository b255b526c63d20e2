"""Text stays text in Markdown, XML and workflow commands."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.protocols import visible
from specgate.reports.common.parts import command_data, command_property, markdown, markdown_table
from tests.support.hostile import STRINGS

anything = st.text(st.characters(exclude_categories=[])) | st.sampled_from(STRINGS)


def cells(line: str) -> list[str]:
    """As GitHub splits a table row: at pipes that no backslash escapes."""
    return re.split(r"(?<!\\)(?:\\\\)*\|", line.strip().removeprefix("|").removesuffix("|"))


@given(st.lists(st.lists(anything, min_size=3, max_size=3), max_size=4))
def test_a_table_has_as_many_cells_per_line_as_columns_whatever_is_in_them(rows: list[list[str]]) -> None:
    lines = markdown_table(("a", "b", "c"), rows)
    assert len(lines) == len(rows) + 2
    assert not any("\n" in line or "\r" in line for line in lines)
    assert {len(cells(line)) for line in lines} == {3}


@given(anything)
def test_markdown_holds_no_tag_no_mention_and_no_open_fence(text: str) -> None:
    result = markdown(text)
    assert not set(result) & set("<>@") and not re.search(r"(?<!\\)`", result)


@given(anything)
def test_what_is_visible_is_allowed_in_xml_and_reads_back(text: str) -> None:
    element = ET.Element("a")
    element.text = visible(text)
    (back,) = ET.fromstring(f"<b>{ET.tostring(element, encoding='unicode')}</b>")
    assert (back.text or "").replace("\r\n", "\n").replace("\r", "\n") == element.text.replace("\r\n", "\n").replace(
        "\r", "\n"
    )


def test_printable_text_is_left_as_it_is() -> None:
    assert visible("AL 2.65 ≥ 2.2 × – 日本\n\t") == "AL 2.65 ≥ 2.2 × – 日本\n\t"
    assert visible("\x1b[0m\x00") == "\\x1b[0m\\x00"


@given(anything)
def test_a_workflow_command_is_one_line_and_gives_the_text_back(text: str) -> None:
    for escaped in (command_data(text), command_property(text)):
        assert not set(escaped) & {"\n", "\r"}
        assert unquote(escaped) == visible(text)


@pytest.mark.parametrize("text", [":", ",", "a: b, c"])
def test_a_property_cannot_end_itself(text: str) -> None:
    assert not set(command_property(text)) & {":", ","}

"""The table of draft lengths by requests: read strictly, and looked up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.lib.chains import ChainTable, table_in, table_of
from specgate.errors import UsageError

ROWS = st.dictionaries(st.integers(1, 40), st.integers(1, 9), min_size=1, max_size=6)


@given(ROWS, st.integers(1, 50))
def test_the_row_that_holds_is_the_last_that_is_reached(rows: dict[int, int], running: int) -> None:
    table = ChainTable(tuple(sorted(rows.items())))
    reached = {requests: drafts for requests, drafts in rows.items() if requests <= running}
    assert table.most(running) == (reached[max(reached)] if reached else rows[min(rows)])


@given(ROWS)
def test_what_is_written_is_read(rows: dict[int, int]) -> None:
    table = ChainTable(tuple(sorted(rows.items())))
    assert table_of(str(table), "here") == table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no pair"),
        ("1:3,", "'' is no pair"),
        ("1:-3", "'1:-3' is no pair"),
        ("a:3", "'a:3' is no pair"),
        ("1:3:4", "'1:3:4' is no pair"),
        (f"1:{'9' * 5000}", "is no pair"),
        ("0:3", "0:3: both are 1 to 4096"),
        ("1:0", "1:0: both are 1 to 4096"),
        ("2:3,2:4", "a number of requests twice"),
    ],
)
def test_a_table_that_is_none_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        table_of(text, "option k_by_batch")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("drafts: []", "schema: not specgate.drafts-by-batch/v1"),
        ("schema: specgate.drafts-by-batch/v1\ndrafts: [1, 3]", "drafts: not a list of rows"),
        ("schema: specgate.drafts-by-batch/v1\ndrafts: [{requests: 1, drafts: 2.5}]", "drafts: not a list of rows"),
        ("schema: specgate.drafts-by-batch/v1\ndrafts: [{requests: 1}]", "drafts: not a list of rows"),
        ("schema: specgate.drafts-by-batch/v1\ndrafts: []", "drafts: no row"),
        ("schema: specgate.drafts-by-batch/v1\ndrafts: [{requests: 0, drafts: 1}]", "drafts: 0:1: both are"),
        ("schema: specgate.drafts-by-batch/v1\ndrafst: []", "drafst: no such key"),
        ("schema: [", ""),
    ],
)
def test_a_file_without_a_table_is_named_with_its_key(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "table.yaml"
    file.write_text(content)
    with pytest.raises(UsageError, match=rf"table\.yaml.*{message}"):
        table_in(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.yml"):
        table_of(str(tmp_path / "nothing.yml"), "option k_by_batch")

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.eagle3.pairs.whole_folder import appearing


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_folder_appears_with_its_content(tmp_path: Path) -> None:
    with appearing(tmp_path / "a" / "out") as partial:
        (partial / "file").write_text("new")
        assert names(tmp_path / "a") == [partial.name]
    assert names(tmp_path / "a") == ["out"] and names(tmp_path / "a" / "out") == ["file"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), appearing(tmp_path / "out") as partial:
        (partial / "file").write_text("half")
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    with pytest.raises(ZeroDivisionError), appearing(tmp_path / "out"):
        raise ZeroDivisionError
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["old"]


def test_what_was_there_comes_back_where_the_new_cannot_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    with pytest.raises(FileNotFoundError), appearing(tmp_path / "out") as partial:
        partial.rename(tmp_path / "elsewhere")
    assert names(tmp_path / "out") == ["old"]


def test_what_was_there_is_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    with appearing(tmp_path / "out") as partial:
        (partial / "new").write_text("new")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["new"]

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.errors import EnvironmentRefused
from specgate.files.cache import cache_dir, cache_path, write_cached


def test_asking_where_the_cache_lies_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "deep" / "cache"))
    assert cache_path() == tmp_path / "deep" / "cache" and not (tmp_path / "deep").exists()
    assert cache_dir().is_dir()


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentRefused, match="set SPECGATE_CACHE"):
        cache_dir()


def test_a_file_of_the_cache_that_cannot_be_written_names_the_variable_that_moves_it(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(EnvironmentRefused, match=r"(?s)taken: cannot be written: Is a directory.*set SPECGATE_CACHE"):
        write_cached(tmp_path / "taken", "text")

"""Whatever file is written: credentials are masked in it, and what is no credential is stored as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specgate import redaction
from specgate.contract import Block
from specgate.files.journal import PointEngine
from specgate.files.run_folder import RunFolder, without_credentials
from specgate.files.writing import as_json, write_json, write_text
from tests.support.factories import blocks_of, plan_of, run_of

KEY = 'horse"battery-9'
NUMBER = "12345678"


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_known_forms", ())
    redaction.remember(KEY, NUMBER)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "micro", "one", "0" * 64)


def test_a_text_is_masked(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", f"<{KEY}> &lt;horse&quot;battery-9&gt; {NUMBER} token")
    assert (tmp_path / "a.txt").read_text() == "<***> &lt;***&gt; *** token"


def test_json_is_masked_in_its_strings_and_keeps_its_numbers(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"said": f"no: {KEY}", "n": int(NUMBER), "id": NUMBER, "é": "\x9b\u202e"})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == {"said": "no: ***", "n": int(NUMBER), "id": "***", "é": "\x9b\u202e"}
    assert "é" in text and not set("\x9b\u202e") & set(text)


def test_no_number_is_infinite_in_json_also_where_something_is_masked() -> None:
    with pytest.raises(ValueError, match="JSON"):
        as_json({"said": KEY, "n": float("inf")})


def test_the_journal_is_masked_and_its_blocks_read_back_equal(folder: RunFolder) -> None:
    blocks = [replace(block, elapsed_ns=int(NUMBER)) for block in blocks_of(plan_of())]
    for block in blocks:
        folder.append(block)
    assert folder.lines(Block) == blocks
    usual = next(iter(run_of(plan_of(), blocks).engines.values()))
    facts = replace(usual, details={"version": f"1.0 for {KEY}", "n": int(NUMBER)}, warnings=(KEY,))
    folder.append(PointEngine("point", facts))
    assert KEY not in (folder.path / "samples" / "engines.jsonl").read_text()
    assert folder.engines()["point"].details == {"version": "1.0 for ***", "n": int(NUMBER)}
    assert folder.engines()["point"].warnings == ("***",)


def test_a_run_without_credentials_is_what_run_json_gives_back(folder: RunFolder) -> None:
    run = replace(
        run_of(plan_of(), blocks_of(plan_of())),
        argv=("specgate", KEY),
        failures={"run": f"refused: {KEY}"},
        id=folder.id,
    )
    hidden = without_credentials(run)
    folder.write_run(run)
    assert folder.read_run() == hidden == replace(run, argv=("specgate", "***"), failures={"run": "refused: ***"})
    assert without_credentials(hidden) is hidden

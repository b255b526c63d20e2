"""Green entries that are believed: made here, with their run folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.errors import InvalidResult
from specgate.files.run_folder import RunFolder
from specgate.files.writing import sha256_of
from specgate.machine import host
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.standing import doubts
from tests.promotion.entries import ENTRY
from tests.promotion.test_ledger import rechained


def recorded(runs: Path, name: str = "run-0", **changes: Any) -> Entry:
    """An entry as a green run leaves it, with a run folder that bears it out, read back from the ledger."""
    folder = RunFolder(runs / name)
    folder.write_json("gates.json", {"exit_code": 0})
    folder.write_manifest()
    made = replace(ENTRY, run=name, host=host.identity(), manifest_sha256=sha256_of(runs / name / "MANIFEST.sha256"))
    Ledger(runs).append(replace(made, **changes))
    return Ledger(runs).read().entries[-1]


def doubt(runs: Path, entry: Entry, *archives: Path) -> str | None:
    return doubts(Ledger(runs, archives))(entry)


def test_a_run_that_was_made_here_is_believed(tmp_path: Path) -> None:
    assert doubt(tmp_path, recorded(tmp_path)) is None


def test_a_ledger_from_another_host_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = recorded(tmp_path)
    monkeypatch.setattr(host, "identity", lambda: "another")
    assert "it ran on another host" in str(doubt(tmp_path, entry))
    assert Ledger(tmp_path).read().host == entry.host != "another"


def test_an_entry_that_names_no_host_is_not(tmp_path: Path) -> None:
    assert "not recorded" in str(doubt(tmp_path, recorded(tmp_path, host=None)))


def test_a_run_without_its_folder_is_not_until_its_archive_is_named(tmp_path: Path) -> None:
    entry = recorded(runs := tmp_path / "runs")
    (archive := tmp_path / "archive").mkdir()
    shutil.move(runs / "run-0", archive / "run-0")
    assert "its run folder is missing" in str(doubt(runs, entry))
    assert doubt(runs, entry, archive) is None


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp", "a/b", ".."])
def test_a_name_that_leads_elsewhere_names_no_folder(tmp_path: Path, name: str) -> None:
    entry = replace(recorded(tmp_path), run=name)
    assert "its run folder is missing" in str(doubt(tmp_path, entry))


def test_a_folder_that_was_changed_since_does_not_bear_out_its_entry(tmp_path: Path) -> None:
    entry = recorded(tmp_path)
    gates = tmp_path / "run-0" / "gates.json"
    gates.write_text(gates.read_text().replace("0", "1"))
    assert "its gates.json is not the one" in str(doubt(tmp_path, entry))
    RunFolder(tmp_path / "run-0").write_manifest()
    assert "its MANIFEST.sha256 is not the one" in str(doubt(tmp_path, entry))


def test_state_and_exit_code_of_an_entry_agree(tmp_path: Path) -> None:
    recorded(tmp_path)
    rechained(Ledger(tmp_path), b'"state":"PASS"', b'"state":"FAIL"')
    with pytest.raises(InvalidResult, match=r"ledger\.jsonl:1: .*its state FAIL and its exit code 0 contradict"):
        Ledger(tmp_path).read()
    with pytest.raises(ValueError, match="contradict each other"):
        Ledger(tmp_path / "new").append(replace(ENTRY, exit_code=1))

"""Stored runs: read as they were left, refused where they were changed, never written to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specgate.archive.stored_runs import load_run, load_runs
from specgate.errors import InvalidResult, OtherVersion, UsageError
from specgate.files.run_folder import RunFolder
from tests.support.stored_runs import as_if_killed, store


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "one"))


def test_a_run_is_read_with_its_policy_and_measured_blocks(folder: Path) -> None:
    run = load_run(folder)
    assert run.run.id == "one" and run.policy.name == "test"
    assert len(run.blocks()) == sum(c.blocks for c in run.run.cells)
    assert not any(b.warmup for b in run.blocks())


def test_a_changed_file_is_refused_and_named(folder: Path) -> None:
    (folder / "run.json").write_text((folder / "run.json").read_text().replace("demo-64", "demo-65"))
    with pytest.raises(InvalidResult, match=r"run\.json: its SHA-256"):
        load_run(folder)


def test_a_missing_file_is_refused_and_named(folder: Path) -> None:
    (folder / "gates.json").unlink()
    with pytest.raises(InvalidResult, match=r"gates\.json: is missing"):
        load_run(folder)


def test_a_file_that_somebody_put_beside_the_others_does_no_harm(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    assert load_run(folder).run.id == "one"


def test_a_run_that_ended_and_lacks_its_manifest_is_refused(folder: Path) -> None:
    (folder / "MANIFEST.sha256").unlink()
    with pytest.raises(InvalidResult, match=r"MANIFEST\.sha256 is missing"):
        load_run(folder)


def test_a_run_that_was_killed_shows_its_finished_blocks_and_is_never_green(folder: Path) -> None:
    as_if_killed(folder)
    run = load_run(folder)
    assert run.run.failures["run"] == "it never ended"
    assert run.run.cells and all(c.blocks for c in run.run.cells)


def test_a_torn_journal_of_a_killed_run_is_refused_and_left_alone(folder: Path) -> None:
    as_if_killed(folder)
    journal = folder / "samples" / "blocks.jsonl"
    journal.write_text(journal.read_text() + '{"poin')
    before = journal.read_bytes()
    with pytest.raises(InvalidResult, match="unfinished line"):
        load_run(folder)
    assert journal.read_bytes() == before


def test_another_schema_is_refused_by_name(folder: Path) -> None:
    file = folder / "run.json"
    file.write_text(file.read_text().replace("specgate.result/v2", "specgate.result/v3"))
    RunFolder(folder).write_manifest()
    with pytest.raises(OtherVersion, match=r"specgate\.result/v3"):
        load_run(folder)


def test_one_run_given_twice_is_a_usage_error_even_as_a_copy(original: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="are the same run: one"):
        load_runs([original, folder])

"""The harness alone writes a run: whatever somebody else changes while the run goes on is noticed and named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import Margin
from specgate.contract.conditions import Sample
from specgate.errors import InvalidResult
from specgate.files.content_hashes import content_of
from specgate.files.run_folder import RunFolder

MARGIN = Margin("one/fake/c64/b2/spec-3", 0, 1, 0, 17, 12.5, 12.25)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "micro", "one", "ab" * 32)
    made.write_json("env.json", {"a": 1})
    made.append(MARGIN)
    made.append(MARGIN)
    return made


@given(known=st.binary(max_size=40), result=st.binary(max_size=40))
def test_content_is_known_by_size_and_hash(known: bytes, result: bytes) -> None:
    assert (content_of(known).contradiction(result) is None) == (known == result)
    assert (content_of(known, open_end=True).contradiction(result) is None) == result.startswith(known)


def test_what_the_harness_wrote_passes(folder: RunFolder) -> None:
    folder.log("worker-0.log").write_text("an engine may write its log\n")
    folder.check()
    assert folder.lines(Margin) == [MARGIN, MARGIN]


def rewrite(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"12.25", b"12.50"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("samples/margins.jsonl", rewrite),
        ("samples/margins.jsonl", lambda file: file.write_bytes(file.read_bytes()[:20])),
        ("samples/margins.jsonl", lambda file: file.write_bytes(file.read_bytes() * 2)),
        ("samples/margins.jsonl", lambda file: file.unlink()),
        ("samples/blocks.jsonl", lambda file: file.write_text("{}\n")),
        ("samples/more.jsonl", lambda file: file.write_text("{}\n")),
        ("env.json", lambda file: file.write_text("{}\n")),
        ("run.json", lambda file: file.write_text("{}\n")),
    ],
    ids=["same size", "cut", "longer", "gone", "of another kind", "unknown", "environment", "not the harness's"],
)
def test_what_somebody_else_changed_is_an_invalid_result_that_names_the_file(
    folder: RunFolder, name: str, change: Callable[[Path], object]
) -> None:
    change(folder.path / name)
    with pytest.raises(InvalidResult, match=rf"{name}: was changed while the run went on"):
        folder.check()


def test_a_file_behind_a_link_is_not_the_harnesss(folder: RunFolder) -> None:
    file = folder.path / "samples" / "margins.jsonl"
    file.rename(folder.path.parent / "kept.jsonl")
    file.symlink_to(folder.path.parent / "kept.jsonl")
    with pytest.raises(InvalidResult, match=r"samples/margins\.jsonl: .*a symbolic link"):
        folder.check()


def test_a_rewritten_journal_is_neither_read_nor_continued(folder: RunFolder) -> None:
    file = folder.path / "samples" / "margins.jsonl"
    rewrite(file)
    with pytest.raises(InvalidResult, match="its SHA-256 is"):
        folder.lines(Margin)
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(InvalidResult, match="the harness wrote"):
        folder.append(MARGIN)


def test_the_manifest_lists_what_the_harness_wrote_whatever_lies_there(folder: RunFolder) -> None:
    file = folder.path / "samples" / "margins.jsonl"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    rewrite(file)
    folder.write_manifest()
    assert f"{before}  samples/margins.jsonl" in (folder.path / "MANIFEST.sha256").read_text()


def test_the_monitors_journal_may_grow_and_ends_as_its_writer_says(folder: RunFolder) -> None:
    assert folder.lines(Sample) == []
    folder.watch_file.write_bytes(b"1\n")
    folder.append(MARGIN)
    folder.watch_file.write_bytes(b"1\n2\n")
    folder.adopt_watch(0, 4, hashlib.sha256(b"1\n2\n").hexdigest())
    folder.check()
    folder.watch_file.write_bytes(b"1\n2\n3\n")
    with pytest.raises(InvalidResult, match=r"environment\.jsonl"):
        folder.check()


def test_what_the_monitor_wrote_before_a_block_ended_cannot_be_rewritten_after_it(folder: RunFolder) -> None:
    assert folder.lines(Sample) == []
    folder.watch_file.write_bytes(b"1\n")
    folder.append(MARGIN)
    folder.watch_file.write_bytes(b"2\n")
    with pytest.raises(InvalidResult, match=r"environment\.jsonl"):
        folder.check()


def test_what_the_monitor_did_not_write_is_noticed_at_its_end(folder: RunFolder) -> None:
    folder.watch_file.write_bytes(b"1\nnot the monitor's\n")
    with pytest.raises(InvalidResult, match="its writer wrote 2 bytes"):
        folder.adopt_watch(0, 2, hashlib.sha256(b"1\n").hexdigest())

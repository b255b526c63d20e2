"""Output becomes a file of the run folder: whole lines, within a limit, with the end kept."""

from __future__ import annotations

import os
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.run.engine_process import logs
from specgate.run.engine_process.logs import TAIL, Log, Printed, Scratch


@given(pieces=st.lists(st.binary(max_size=40), max_size=20))
def test_what_is_short_is_stored_whole_however_it_is_cut(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder) / "log", lambda text: text)
        for piece in pieces:
            log.add(piece)
        log.end()
        written = Path(folder, "log").read_bytes() if Path(folder, "log").exists() else b""
    assert written.decode() == b"".join(pieces).decode("utf-8", "replace")


def test_a_text_is_changed_in_whole_lines(tmp_path: Path) -> None:
    seen: list[str] = []

    def upper(text: str) -> str:
        seen.append(text)
        return text.upper()

    log = Log(tmp_path / "log", upper)
    for piece in (b"one\ntw", b"o", b"\nthree"):
        log.add(piece)
    assert seen == ["one\n", "two\n"]
    log.end()
    assert (tmp_path / "log").read_text() == "ONE\nTWO\nTHREE"


def test_of_what_is_long_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    log, lines = Log(tmp_path / "log", str, limit=TAIL + 1000), [b"%06d\n" % n for n in range(30_000)]
    for line in lines:
        log.add(line)
    log.end()
    text = (tmp_path / "log").read_bytes()
    head, _, rest = text.partition(b"\n[specgate: ")
    sentence, _, tail = rest.partition(b" bytes of this log are left out here]\n")
    assert b"".join(lines).startswith(head) and b"".join(lines).endswith(tail)
    assert int(sentence) == 7 * 30_000 - len(head) - len(tail) and (len(head), len(tail)) == (1000, TAIL)


def test_a_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    log = Log(tmp_path / "gone" / "log", str)
    log.add(b"a line\n")
    log.end()
    assert not (tmp_path / "gone").exists()


def test_a_pipe_that_another_program_still_holds_is_not_waited_for(tmp_path: Path) -> None:
    before = threading.active_count()
    printed = Printed(Log(tmp_path / "log", str))
    other = os.dup(printed.pipe)
    os.write(other, b"said\n")
    printed.started()
    printed.end()
    printed.end()
    os.close(other)
    assert (tmp_path / "log").read_text() == "said\n" and threading.active_count() == before


def test_only_plain_files_of_the_scratch_folder_are_copied(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("a secret")
    scratch = Scratch(tmp_path)
    (scratch.folder / "link.log").symlink_to(secret)
    (scratch.folder / "folder.log").mkdir()
    os.mkfifo(scratch.folder / "pipe.log")
    (scratch.folder / "fine.log").write_text(f"in {scratch.folder / 'fine.log'}\n")
    scratch.end()
    assert {file.name for file in tmp_path.iterdir()} == {"secret", "fine.log"}
    assert (tmp_path / "fine.log").read_text() == f"in {tmp_path / 'fine.log'}\n"
    assert not scratch.folder.exists()


def test_a_file_that_grows_is_copied_once(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    with (scratch.folder / "server.log").open("w") as log:
        for text in ("one\n", "two\nthr", "ee\n"):
            log.write(text)
            log.flush()
            scratch.copy()
    scratch.end()
    assert (tmp_path / "server.log").read_text() == "one\ntwo\nthree\n"


def test_a_huge_file_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "Log", partial(Log, limit=1 << 20))
    scratch = Scratch(tmp_path)
    with (scratch.folder / "sparse.log").open("wb") as log:
        log.write(b"the first line\n")
        log.truncate(1 << 40)
        log.seek(0, os.SEEK_END)
        log.write(b"\nthe last line\n")
    scratch.end()
    text = (tmp_path / "sparse.log").read_bytes()
    assert len(text) < (1 << 20) + 100
    assert text.startswith(b"the first line\n") and text.endswith(b"\nthe last line\n")


def test_a_folder_of_many_files_is_not_copied_whole(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    for number in range(logs.MOST_FILES + 5):
        (scratch.folder / f"{number}.log").write_text("x")
    scratch.end()
    assert len(list(tmp_path.iterdir())) == logs.MOST_FILES

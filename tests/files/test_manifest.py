"""A run folder holds plain files that its manifest lists; anything else is named."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.files.manifest import FORMER, MANIFEST, grown_differences, manifest_differences, manifest_of
from specgate.files.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path, "micro", "one", "ab" * 32)
    folder.write_json("env.json", {"a": 1})
    folder.write_text("samples/blocks.jsonl", "{}\n")
    folder.log("worker-0.log").write_text("said\n")
    (folder.path / ".lock").touch()
    folder.write_manifest()
    return folder.path


def found(run: Path) -> list[str]:
    return [str(d) for d in manifest_differences(run)]


def test_a_folder_as_a_run_leaves_it_has_no_differences(run: Path) -> None:
    assert found(run) == []


def link(run: Path) -> None:
    (run / "env.json").rename(run.parent / "elsewhere.json")
    (run / "env.json").symlink_to(run.parent / "elsewhere.json")


def folder_link(run: Path) -> None:
    (run.parent / "logs").mkdir()
    (run / "logs" / "more").symlink_to(run.parent / "logs")


def pipe(run: Path) -> None:
    (run / "samples" / "blocks.jsonl").unlink()
    os.mkfifo(run / "samples" / "blocks.jsonl")


def listen(run: Path) -> None:
    with contextlib.chdir(run), socket.socket(socket.AF_UNIX) as end:  # the name of a socket is short
        end.bind("s")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (link, "env.json: is a symbolic link"),
        (folder_link, "logs/more: is a symbolic link"),
        (pipe, "samples/blocks.jsonl: is a device, a pipe or a socket"),
        (listen, "s: is a device, a pipe or a socket"),
        (lambda run: (run / "more").mkdir(), "more: is a folder that no run makes"),
        (lambda run: (run / "more.txt").touch(), f"more.txt: is not in {MANIFEST}"),
        (lambda run: (run / "logs" / "more.log").touch(), f"logs/more.log: is not in {MANIFEST}"),
        (lambda run: (run / ".lock").write_text("x"), ".lock: is not empty"),
        (lambda run: (run / "samples" / ".lock").touch(), f"samples/.lock: is not in {MANIFEST}"),
        (lambda run: (run / "logs" / "worker-0.log").write_text("unsaid\n"), "logs/worker-0.log: its SHA-256 is"),
        (lambda run: (run / "logs" / "worker-0.log").unlink(), "logs/worker-0.log: is missing"),
    ],
)
def test_what_is_no_listed_plain_file_is_named(run: Path, change: Callable[[Path], object], message: str) -> None:
    change(run)
    assert len(found(run)) == 1 and found(run)[0].startswith(message), found(run)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{'0' * 64}  ../outside", "../outside lies outside of the run folder"),
        (f"{'0' * 64}  /etc/passwd", "/etc/passwd lies outside of the run folder"),
        ("0000  env.json", "is not a SHA-256"),
    ],
)
def test_a_manifest_lists_files_of_its_folder_only(run: Path, line: str, message: str) -> None:
    with (run / MANIFEST).open("a") as file:
        file.write(f"{line}\n")
    assert any(message in text for text in found(run)), found(run)


@pytest.mark.parametrize("end", ["\v", "\f", "\r", "\r\n", "\x1c", "\x85", "\u2028"])
def test_a_line_of_a_manifest_ends_with_a_line_feed_alone(run: Path, end: str) -> None:
    text = (run / MANIFEST).read_text(encoding="utf-8")
    (run / MANIFEST).write_bytes(text.replace("\n", end, 1).encode())
    assert list(manifest_differences(run))


def test_a_file_that_is_listed_twice_is_named(run: Path) -> None:
    (run / MANIFEST).write_text((run / MANIFEST).read_text() + (run / MANIFEST).read_text().splitlines()[0] + "\n")
    assert any("is listed twice" in text for text in found(run))


LINES = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6).map(lambda names: "".join(f"{n}\n" for n in names))


@given(before=LINES, after=LINES)
def test_a_journal_may_grow_by_whole_lines_only(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str
) -> None:
    run = tmp_path_factory.mktemp("run")
    (run / "samples").mkdir()
    journal = run / "samples" / "blocks.jsonl"
    journal.write_text(before)
    (run / FORMER).write_text(manifest_of(run))
    journal.write_text(after)
    assert (list(grown_differences(run)) == []) == after.startswith(before)

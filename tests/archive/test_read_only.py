"""verify and status on a read-only mount: nothing is opened for writing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specgate.promotion.ledger import Ledger
from tests.support import in_process, outlines
from tests.support.command import Cli

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = (
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate", "os.utime"),
    *("shutil.move", "shutil.rmtree"),
)


def watched(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`specgate ARGUMENTS` in a process that says what it opens for writing below `folder`."""
    below, (reading, writing) = os.path.realpath(folder), os.pipe()
    if (child := os.fork()) == 0:

        def hook(event: str, args: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(args[2], int) and args[2] & WRITING
            named = (writes or event in CHANGING) and isinstance(args[0], str | bytes | os.PathLike)
            path = os.path.realpath(os.fsdecode(args[0])) if named else ""
            if path.startswith(below):
                os.write(writing, f"WRITTEN {event} {path}\n".encode())

        sys.addaudithook(hook)
        status = 99
        try:
            with pytest.MonkeyPatch.context() as patch:
                outlines.drawn_again(patch)
                done = in_process.command(Path("/"), [str(word) for word in arguments])
            os.write(writing, f"{done.stdout}{done.stderr}".encode())
            status = done.returncode
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as stream:
        printed = stream.read()
    return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    cli = Cli(tmp_path_factory.mktemp("read-only"), *pair)
    with pytest.MonkeyPatch.context() as patch:
        outlines.drawn_again(patch)
        assert cli.micro("--backend", "fake").returncode == 0
    run = cli.newest()
    (run.parent / "ledger.lock").unlink()
    for path in (*run.parent.rglob("*"), run.parent):
        path.chmod(path.stat().st_mode & ~0o222)
    return run


def test_a_write_is_seen_by_the_watch(cli: Cli) -> None:
    """A control: without it, a watch that sees nothing would pass every test of this file."""
    tiny = ("--scenario", cli.folder / "tiny.yaml", "--target", cli.target, "--draft", cli.draft)
    done = watched(
        cli.folder, "machine", "calibrate", "--backend", "fake", "--processes", "1", "--out", cli.folder / "runs", *tiny
    )
    assert "WRITTEN" in done.stdout, done.stdout


def test_a_run_on_a_read_only_mount_is_verified_and_nothing_is_written(run: Path) -> None:
    done = watched(run.parent, "runs", "verify", run)
    assert done.returncode == 0, done.stdout
    assert "holds: " in done.stdout and "WRITTEN" not in done.stdout
    assert not (run.parent / "ledger.lock").exists()


def test_without_a_ledger_it_says_what_that_leaves_open(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / run.name)
    done = watched(tmp_path, "runs", "verify", tmp_path / run.name)
    assert done.returncode == 0, done.stdout
    note = "note: the ledger beside the run is not there: that the manifest is the one the run ended with"
    assert note in done.stdout


def test_a_ledger_is_read_without_a_lock(run: Path) -> None:
    assert [entry.run for entry in Ledger(run.parent).read().entries] == [run.name]
    assert not (run.parent / "ledger.lock").exists()

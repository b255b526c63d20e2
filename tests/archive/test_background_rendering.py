"""A second process renders the reports of a large run: what it draws is held against the stored ones as usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.archive import background_rendering
from specgate.archive.verification import verify
from specgate.files.run_folder import RunFolder
from tests.support.command import Cli

DRAWS = True


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that counts as large, on a machine that counts as one with two CPUs."""
    monkeypatch.setattr(background_rendering, "WORTH_IT", 1)
    monkeypatch.setattr(background_rendering, "usable_cpus", lambda: {0, 1})
    done = cli.micro("--backend", "fake")
    assert done.returncode == 0, done.stdout + done.stderr
    return cli.newest()


def no_semaphores(*_: object, **__: object) -> None:
    raise OSError("no semaphores here")


def test_an_untouched_run_holds_and_a_changed_page_and_table_are_found(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not verify(run).differences
    with monkeypatch.context() as patch:  # then one process renders everything
        patch.setattr(background_rendering, "ProcessPoolExecutor", no_semaphores)
        assert not verify(run).differences
    for file, was, now in (("report.html", ">PASS<", ">FAIL<"), ("summary.md", "PASS", "FAIL")):
        text = (run / file).read_text()
        assert was in text
        (run / file).write_text(text.replace(was, now, 1))
    RunFolder(run).write_manifest()
    for ledger in run.parent.glob("ledger.*"):
        ledger.unlink()
    assert {d.file for d in verify(run).differences} == {"report.html", "summary.md"}

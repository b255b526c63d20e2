"""`specgate demo`: a first verdict on a machine that has nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract import State
from specgate.errors import ExitCode
from specgate.selftest import demo
from tests.support import in_process
from tests.support.command import ROOT, UNDRAWN


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, on a machine whose cache is empty."""
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_two_engines_get_their_verdicts_from_stored_runs_without_a_download(bare: Path) -> None:
    done = in_process.command(bare, ["demo"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 12 and not any((bare / "cache").rglob("*.whl"))
    honest, wrong = lines[2:4]
    assert "PASS" in honest and "speculation pays: 2.3" in honest
    assert "INVALID" in wrong and f"token {demo.WRONG_TOKEN_AT}: " in wrong
    pages = [bare / line.removeprefix("page  ") for line in lines if line.startswith("page  ")]
    assert [p.is_file() for p in pages] == [True, True]
    assert all((p.parent / "run.json").is_file() for p in pages)
    assert [line.split("specgate ")[1].split()[0] for line in lines[-3:]] == ["micro", "micro", "ab"]


def test_an_engine_that_ends_otherwise_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = demo.ENGINES[1]
    late = replace(wrong, options={"wrong_token_at": "41"})
    silent = replace(wrong, options={"no_drafts": "true"}, state=State.PASS)
    monkeypatch.setattr(demo, "ENGINES", (late, silent))
    done = in_process.command(bare, ["demo"])
    assert done.returncode == 1
    assert "token 41" in done.stdout and "draft" in done.stdout.splitlines()[3]


@pytest.mark.slow("runs in processes of their own")
def test_ctrl_c_during_a_run_ends_the_demo(bare: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", UNDRAWN, "demo"]
    with (
        in_process.interruptible(),
        subprocess.Popen(command, cwd=bare, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        while not any(bare.glob("runs/demo/*/samples/blocks.jsonl")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        text = process.stdout.read()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "an honest engine" not in text and len(list(bare.glob("runs/demo/*/run.json"))) == 1

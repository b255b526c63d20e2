"""An engine in a sandbox sees no run, no other process, and writes nothing but its own. What it does outside fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import specgate
from specgate.contract import BASELINE, Budget, PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import OtherCode, WorkerLost
from specgate.machine.memory_in_use import outside
from specgate.run.engine_process.launch import HARNESS, Launch
from specgate.run.worker import EngineWorker
from specgate.sandbox.isolation import isolated, own_sources
from tests.run.engine_process.conftest import OpenedApart
from tests.sandbox import needs_bubblewrap

pytestmark = [needs_bubblewrap, pytest.mark.slow("starts a process per test")]

ATTACK = """
import json, os, signal
def attempt(action):
    try:
        return action()
    except Exception as error:
        return type(error).__name__
def stop(pid):
    os.kill(pid, 0)
    return "could be stopped"
def opened(path):
    open(path, "r+b").close()
    return "could be written"
if os.fork() == 0:
    os.setsid(); signal.pause()
seen = {
    "runs": attempt(lambda: os.listdir("RUNS")),
    "harness": attempt(lambda: open("/proc/HARNESS/cmdline").read() and "is seen"),
    "stopped": attempt(lambda: stop(HARNESS)),
    "source": attempt(lambda: opened("SOURCE")),
    "weights": attempt(lambda: opened("WEIGHTS")),
    "home": os.path.expanduser("~"),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
}
(request.logs / "seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture
def attack(tmp_path: Path) -> dict[str, str]:
    """An engine that looks for the run, the harness, and files to rewrite, and leaves an orphan."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ledger.jsonl").touch()
    (tmp_path / "weights").touch()
    source = Path(specgate.__file__).parent / "cli.py"
    places = {"RUNS": tmp_path / "runs", "SOURCE": source, "WEIGHTS": tmp_path / "weights", "HARNESS": os.getpid()}
    text = ATTACK
    for name, place in places.items():
        text = text.replace(name, str(place))
    return {"exec_at_open": text, "file": str(tmp_path / "weights")}


def seen_by(apart: OpenedApart, tmp_path: Path, attack: dict[str, str]) -> dict[str, Any]:
    with apart(**attack) as worker:
        worker.prefill([[1]], draft=False)
        family = psutil.Process(worker.pid).children(recursive=True)
        assert family
    logs = tmp_path / "run" / "logs" / "seen.json"
    alive = [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        process.kill()
    return {**json.loads(logs.read_text()), "alive": len(alive)}


def test_in_a_sandbox_every_attack_fails(apart: OpenedApart, tmp_path: Path, attack: dict[str, str]) -> None:
    with isolated(True, tmp_path / "runs"):
        seen = seen_by(apart, tmp_path, attack)
    assert seen["runs"] == [] and seen["harness"] == "FileNotFoundError" and seen["stopped"] == "ProcessLookupError"
    assert seen["source"] in ("OSError", "PermissionError") and seen["weights"] in ("OSError", "PermissionError")
    assert seen["processes"] <= 4 and seen["alive"] == 0
    assert seen["home"] != str(Path.home()) and not Path(seen["home"]).exists()


def test_without_one_the_same_attacks_work(apart: OpenedApart, tmp_path: Path, attack: dict[str, str]) -> None:
    seen = seen_by(apart, tmp_path, attack)
    assert seen["runs"] == ["ledger.jsonl"] and seen["stopped"] == "could be stopped"
    assert seen["source"] == seen["weights"] == "could be written" and seen["alive"] == 1


@contextmanager
def fake(tmp_path: Path, launch: Launch, **options: str) -> Iterator[EngineWorker]:
    request = OpenRequest(PairRef("fake", tmp_path, tmp_path), "float32", 2, 256, 3, perf_mode=False, options=options)
    worker = EngineWorker("fake", request, 60, tmp_path / "worker.log", launch)
    try:
        yield worker
    finally:
        worker.close()


def test_blocks_come_out_of_a_sandbox_and_a_signal_is_named(tmp_path: Path) -> None:
    with isolated(True), fake(tmp_path, Launch()) as worker:
        worker.prefill([[1, 2, 3]], draft=False)
        assert len(worker.decode(BASELINE, Budget(steps=4), ()).tokens[0]) == 5
        inside = psutil.Process(worker.pid).children(recursive=True)[-1]
        assert outside(worker.pid, 2) == inside.pid  # the first process in a sandbox is the sandbox's own
        assert outside(worker.pid, 77) is None
        inside.kill()
        with pytest.raises(WorkerLost, match="was ended by SIGKILL"):
            worker.prefill([[1]], draft=False)


@pytest.mark.parametrize("name", ["specgate/backends/fake/engine.py", "specgate/contract/__init__.py"])
def test_an_engine_of_another_source_than_was_hashed_is_not_run(tmp_path: Path, name: str) -> None:
    other = {**own_sources(), name: "0" * 64}
    with pytest.raises(OtherCode, match="its source was changed") as caught, fake(tmp_path, Launch(sources=other)):
        pass
    assert str(HARNESS / name) in str(caught.value.hint)


def test_an_engine_of_the_hashed_source_runs_whatever_is_compiled_beside_it(tmp_path: Path) -> None:
    with fake(tmp_path, Launch(sources=own_sources())) as worker:
        assert worker.facts().backend == "fake"

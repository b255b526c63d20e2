"""The engine's process: what it says comes back whole, and its death costs an error with a reason, not the parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError, WorkerLost
from specgate.run.worker import EngineWorker

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]


@contextmanager
def opened(tmp_path: Path, timeout_s: float = 60, **options: str) -> Iterator[EngineWorker]:
    pair = PairRef("fake", tmp_path, tmp_path)
    request = OpenRequest(pair, "float32", max_batch=2, max_positions=256, max_k=3, perf_mode=False, options=options)
    worker = EngineWorker("fake", request, timeout_s, tmp_path / "worker.log")
    try:
        yield worker
    finally:
        worker.close()


def test_blocks_come_back_as_the_engine_made_them(tmp_path: Path) -> None:
    with opened(tmp_path) as worker:
        assert worker.facts().backend == "fake"
        assert worker.pid != os.getpid()
        worker.prefill(PROMPTS, draft=True)
        plain = worker.decode(BASELINE, Budget(new_tokens=9), ())
        assert worker.decode(Role(3), Budget(new_tokens=9), ()).tokens == plain.tokens


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(BackendError), opened(tmp_path, fail_open="1"):
        pass


def test_a_killed_engine_is_named_with_its_signal(tmp_path: Path) -> None:
    with opened(tmp_path) as worker:
        worker.prefill(PROMPTS, draft=True)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerLost, match="SIGKILL"):
            worker.decode(BASELINE, Budget(new_tokens=9), ())


def test_an_engine_that_hangs_is_ended_after_the_timeout(tmp_path: Path) -> None:
    with opened(tmp_path) as worker:
        assert worker.pid is not None
        worker.timeout_s = 0.2
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match="no answer to prefill"):
            worker.prefill(PROMPTS, draft=True)


def test_closing_ends_the_process_even_if_it_died_before(tmp_path: Path) -> None:
    before = threading.active_count()
    with opened(tmp_path) as worker:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
    worker_gone = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(worker_gone, 0)
    assert threading.active_count() == before


def test_an_idle_engine_is_given_time_to_end_and_one_that_owes_an_answer_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    with opened(tmp_path) as worker:
        wait = worker._process.wait

        def noted(timeout: float | None = None) -> int:
            waited.append(timeout)
            return wait(timeout)

        monkeypatch.setattr(worker._process, "wait", noted)
        worker.close()
    assert waited[0] == 30.0


HANGS = """
import sys
from pathlib import Path
from specgate.contract.protocols import OpenRequest
from specgate.contract import BASELINE, Budget, PairRef
from specgate.run.worker import EngineWorker

folder = Path(sys.argv[1])
pair = PairRef("fake", folder, folder)
request = OpenRequest(pair, "float32", 1, 64, 3, False, {"hang_after_blocks": "0"})
worker = EngineWorker("fake", request, 60, folder / "log")
worker.prefill([[1, 2]], draft=False)
print(worker.pid, flush=True)
worker.decode(BASELINE, Budget(new_tokens=9), ())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is not a child: Linux only")
def test_an_engine_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        engine = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        ended, _, _ = select.select([engine], [], [], 30)
    finally:
        os.close(engine)
    assert ended

"""A server is ended with everything that it has started, and nothing else, however the harness ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from specgate.backends.servers import process
from specgate.backends.servers.process import Command, ServerProcess, free_port, is_free, wait_until_free
from specgate.errors import BackendError
from specgate.machine.host import listeners, name_of, root_of
from tests.backends.servers.helpers import ROOT, wait_for

SMALL = Path(__file__).with_name("small_server.py")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted, and pids read, on Linux")


def command(port: int, pids: Path, *flags: str) -> Command:
    return Command((sys.executable, str(SMALL), str(port), str(pids), *flags))


def eventually(true: Callable[[], bool]) -> bool:
    """Within a minute: how long a loaded machine may take to start what is looked for."""
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def alive(pids: Path) -> list[int]:
    """Of the server and its helper: those that run."""
    return [pid for pid in map(int, pids.read_text().split()) if runs(pid)]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_of_several_that_listen_the_one_that_started_the_others_is_the_server(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    process = ServerProcess(command(port, pids), tmp_path / "log", stop_s=0.3)
    try:
        wait_for(port)
        server, helper = map(int, pids.read_text().split())
        assert root_of(listeners([port])) == server
        assert root_of(sorted((server, helper))) == root_of([helper, server]) == server
        assert root_of(sorted((os.getpid(), server))) == os.getpid() and root_of([helper]) == helper
        assert root_of([server, 999_999_999]) is None and root_of([]) is None
        assert name_of(server) == psutil.Process(server).name() and name_of(None) is None
    finally:
        process.stop()
    assert root_of([server]) is None and name_of(server) is None


@pytest.mark.parametrize("flags", [(), ("--stubborn",)])
def test_three_cycles_leave_no_process_and_no_port(flags: tuple[str, ...], tmp_path: Path) -> None:
    port, pids, others = free_port(), tmp_path / "pids", set(psutil.Process().children())
    for _ in range(3):
        process = ServerProcess(command(port, pids, *flags), tmp_path / "log", stop_s=0.3)
        wait_for(port)
        assert process.ended is None and len(alive(pids)) == 2
        process.stop()
        wait_until_free(port)
        assert not alive(pids)
    assert set(psutil.Process().children()) <= others


def test_a_server_that_ends_by_itself_takes_its_helpers_along(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    process = ServerProcess(command(port, pids), tmp_path / "log", stop_s=1)
    wait_for(port)
    os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
    assert eventually(lambda: process.ended == -signal.SIGKILL)
    assert eventually(lambda: not alive(pids))
    process.stop()


def test_a_program_that_is_not_there_ends_at_once_with_the_reason_in_the_log(tmp_path: Path) -> None:
    process = ServerProcess(Command(("no-such-program",)), tmp_path / "log", stop_s=1)
    assert eventually(lambda: process.ended == 127)
    process.stop()
    assert "no-such-program: No such file or directory" in (tmp_path / "log").read_text()


HARNESS = """
import sys, time
from pathlib import Path
from specgate.backends.servers import process
from specgate.backends.servers.process import Command, ServerProcess
process = ServerProcess(Command(tuple(sys.argv[2:])), Path(sys.argv[1]), 0.3)
print(process._supervisor.pid, flush=True)
time.sleep(60)
"""


def test_kill_9_of_the_harness_ends_the_server_and_frees_its_port(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    arguments = [sys.executable, "-c", HARNESS, str(tmp_path / "log"), *command(port, pids).argv]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE) as harness:
        wait_for(port)
        assert len(alive(pids)) == 2
        harness.kill()
    assert eventually(lambda: not alive(pids)) and eventually(lambda: is_free(port))


def test_kill_9_of_the_supervisor_ends_the_server(tmp_path: Path) -> None:
    port, pids = free_port(), tmp_path / "pids"
    arguments = [sys.executable, "-c", HARNESS, str(tmp_path / "log"), *command(port, pids).argv]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        supervisor = int(harness.stdout.readline())
        wait_for(port)
        server, helper = (int(text) for text in pids.read_text().split())
        os.kill(supervisor, signal.SIGKILL)
        assert eventually(lambda: server not in alive(pids)) and eventually(lambda: is_free(port))
        os.kill(helper, signal.SIGKILL)  # in a session of its own: only the supervisor knew it
        harness.kill()


def test_a_port_is_found_once_though_its_server_does_not_listen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PORTS", [port := free_port()])
    with pytest.raises(BackendError, match=f"every port of 127.0.0.1 from {port} to {port} is in use"):
        free_port()


def test_a_port_that_another_process_has_found_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "from specgate.backends.servers.process import free_port; print(free_port(), flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with other:
        assert other.stdout is not None
        monkeypatch.setattr(process, "PORTS", [int(other.stdout.readline())])
        with pytest.raises(BackendError, match="is in use"):
            free_port()
        other.communicate("\n")
    assert free_port() == process.PORTS[0]

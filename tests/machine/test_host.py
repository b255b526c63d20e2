"""Identity of the host, and owners of CPU time and processes: ours, everything we started, and the rest."""

from __future__ import annotations

import multiprocessing as mp
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.conditions import GpuProcess
from specgate.machine import host
from specgate.machine.host import HostProbe, cache_bytes, cpu_quota, frequency_governors, identity, usable_cpus


@pytest.fixture
def child() -> Iterator[int]:
    """A process that waits until the test is over."""
    ours, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=theirs.recv)
    process.start()
    assert process.pid is not None
    yield process.pid
    ours.send(None)
    process.join()


def test_a_process_is_ours_foreign_or_unseen(child: int) -> None:
    probe = HostProbe(os.getpid())
    probe.read()
    assert probe.owner(os.getpid()) == GpuProcess(os.getpid(), "ours")
    assert probe.owner(child).owner == "ours"
    parent = psutil.Process(os.getppid())
    assert probe.owner(parent.pid) == GpuProcess(parent.pid, "foreign", parent.name())
    assert probe.owner(2**22 + 1).owner == "unseen"


LISTENER = """
import socket, subprocess, sys
server = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(server.getsockname()[1], child.pid, flush=True)
sys.stdin.read()
"""


def test_a_program_that_listens_on_a_port_that_is_measured_is_ours_with_all_it_started() -> None:
    ended = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    server = subprocess.Popen(
        [sys.executable, "-c", ended, LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stdin is not None
    with server:
        port, child = map(int, server.stdout.readline().split())
        measured, alone = HostProbe(os.getpid(), [port]), HostProbe(os.getpid())
        assert measured.owner(child).owner == "ours" and measured.owner(os.getpid()).owner == "ours"
        assert alone.owner(child).owner == "foreign", "it was started by a process that has ended"
        server.stdin.close()


def test_a_process_of_ours_that_has_ended_stays_ours() -> None:
    process = mp.get_context("spawn").Process(target=int)
    process.start()
    assert process.pid is not None
    probe = HostProbe(os.getpid())
    process.join()
    probe.read()
    assert probe.owner(process.pid).owner == "ours"


@given(busy_ticks=st.integers(0, 2000), our_ticks=st.integers(0, 2000))
def test_others_have_what_is_busy_and_not_ours_as_a_share_of_what_was_offered(busy_ticks: int, our_ticks: int) -> None:
    busy, ours = busy_ticks / 100, our_ticks / 100
    probe = HostProbe(os.getpid())
    totals = iter([(110.0, 50.0 + busy, 5.0 + ours)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(probe, "_before", (100.0, 50.0, 5.0))
        patched.setattr(probe, "_totals", lambda: next(totals))
        patched.setattr(host, "usable_cpus", lambda: {0, 1})
        share = probe.read().other_cpu_share
    if busy == 0:
        assert share is None
    else:
        assert share == pytest.approx(min(1.0, max(0.0, (busy - ours) / 20)), abs=1e-9)


class Times(NamedTuple):
    user: float
    idle: float


def test_a_host_that_counts_no_cpu_time_gives_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [Times(0.0, 0.0)] * 1024)
    assert HostProbe(os.getpid()).read().other_cpu_share is None


def test_the_harness_may_have_ended_before_its_watch() -> None:
    process = mp.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    assert process.pid is not None
    assert HostProbe(process.pid).read().available_memory_bytes > 0


def test_a_host_says_its_cpus_governors_and_quota_or_nothing() -> None:
    assert usable_cpus() == set(os.sched_getaffinity(0))
    assert all(frequency_governors())
    quota = cpu_quota()
    assert quota is None or quota > 0


def test_the_last_level_caches_of_all_sockets_are_added_up_once_each(tmp_path: Path) -> None:
    """Two sockets of two CPUs each: 1 MB of their own, 32 MB shared."""
    for cpu in range(4):
        socket = cpu // 2 * 2
        for index, (level, size, shared) in enumerate(
            [(2, "1024K", f"{cpu}"), (3, "32768K", f"{socket}-{socket + 1}")]
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{value}\n")
    assert cache_bytes(tmp_path) == 2 * 32 << 20


def test_a_host_that_shows_no_caches_has_none(tmp_path: Path) -> None:
    (tmp_path / "cpu0" / "cache" / "index0").mkdir(parents=True)
    (tmp_path / "cpu0" / "cache" / "index0" / "size").write_text("unknown")
    assert cache_bytes(tmp_path) is None


def test_a_host_keeps_its_identity_under_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (own := tmp_path / "machine-id").write_text("7f3c0d3b9f2e4b0c8a6d5e4f3a2b1c0d\n")
    monkeypatch.setattr(host, "MACHINE_IDS", (str(tmp_path / "absent"), str(own)))
    before = identity()
    monkeypatch.setattr(platform, "node", lambda: "renamed")
    assert identity() == before
    assert len(before) == 16 and int(before, 16) >= 0
    own.write_text("7f3c0d3b9f2e4b0c8a6d5e4f3a2b1c0e\n")
    assert identity() != before


def test_a_host_without_an_identity_of_its_own_is_known_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (empty := tmp_path / "machine-id").write_text("\n")
    monkeypatch.setattr(host, "MACHINE_IDS", (str(empty),))
    names = set()
    for name in ("one", "two", "one"):
        monkeypatch.setattr(platform, "node", lambda name=name: name)
        names.add(identity())
        assert name not in identity()
    assert len(names) == 2

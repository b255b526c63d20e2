"""The kernel's counters around a block: those of this machine, and recorded ones with every source hidden in turn."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract.conditions import CpuUse
from specgate.machine import cpu_counters
from specgate.machine.cpu_counters import Counters, CpuProbe, between, cpu_time_ns
from specgate.machine.host import usable_cpus

HARNESS, ENGINE, SERVER, STRANGER = 100, 200, 300, 400
MS = 1_000_000
TIME_OF_OURS = {HARNESS: 10 * MS, ENGINE: 200 * MS, SERVER: 30 * MS}


class Recorded:
    """Files as a kernel shows them, of a machine with two CPUs. `later` is what they hold after a block."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.spent = dict(TIME_OF_OURS)
        self.stat(user=1000, steal=7)
        self.process(HARNESS, ENGINE)
        self.process(ENGINE, SERVER)
        self.process(SERVER)
        self.process(STRANGER)
        self.thread(HARNESS, HARNESS, 5 * MS, MS)
        self.thread(ENGINE, ENGINE, 900 * MS, 40 * MS)
        self.thread(ENGINE, 201, 800 * MS, 30 * MS)
        self.thread(SERVER, SERVER, 10 * MS, 0)
        self.pressure(5_000)
        self.write(self.cgroup / "cpu.stat", "usage_usec 12\nnr_throttled 1\nthrottled_usec 250\n")

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def stat(self, *, user: int, steal: int) -> None:
        def line(name: str) -> str:
            return f"{name} {user} 5 20 90000 33 1 2 {steal} 11 0"

        self.write(self.proc / "stat", "\n".join([line("cpu"), line("cpu0"), line("cpu1"), "intr 5 0", ""]))

    def process(self, pid: int, *started: int) -> None:
        self.write(self.proc / str(pid) / "task" / str(pid) / "children", "".join(f"{child} " for child in started))

    def thread(self, pid: int, tid: int, ran: int, waited: int) -> None:
        for folder in (self.proc / str(pid) / "task" / str(tid), *([self.proc / str(pid)] if pid == tid else [])):
            self.write(folder / "schedstat", f"{ran} {waited} 17\n")

    def pressure(self, us: int) -> None:
        lines = f"some avg10=1.00 avg60=2.00 avg300=3.00 total={us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
        self.write(self.proc / "pressure" / "cpu", lines)

    def later(self) -> None:
        self.stat(user=1060, steal=9)
        self.thread(HARNESS, HARNESS, 7 * MS, 4 * MS)
        self.thread(ENGINE, ENGINE, 1100 * MS, 90 * MS)
        self.thread(ENGINE, 201, 900 * MS, 45 * MS)
        self.thread(ENGINE, 202, 3 * MS, 2 * MS)
        self.pressure(105_000)
        self.write(self.cgroup / "cpu.stat", "usage_usec 12\nnr_throttled 1\nthrottled_usec 1250\n")
        self.spent = {HARNESS: 12 * MS, ENGINE: 500 * MS, SERVER: 40 * MS}

    def block(self) -> CpuUse:
        probe = CpuProbe(self.proc, self.cgroup, lambda pid: self.spent[pid], HARNESS)
        before = probe.read(ENGINE)
        self.later()
        return between(before, probe.read_again(before))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(cpu_counters, "usable_cpus", lambda: {0, 1})
    monkeypatch.setattr(cpu_counters, "cpu_quota", lambda: 1.5)
    return Recorded(tmp_path)


def test_what_grew_between_two_readings_is_what_the_block_had(recorded: Recorded) -> None:
    used = recorded.block()
    assert replace(used, wall_ns=0) == CpuUse(
        wall_ns=0,
        cpus=2,
        offered=1.5,
        busy_ns=2 * (60 + 2) * 10 * MS,
        ours_ns=(2 + 300 + 10) * MS,
        stolen_ns=2 * 10 * MS,
        wanted_ns=(200 + 50 + 100 + 15 + 3 + 2) * MS,
        waited_ns=50 * MS,
        pressure_ns=100 * MS,
        throttled_ns=MS,
    )


def test_a_process_of_the_engine_that_ends_within_the_block_hides_no_other(recorded: Recorded) -> None:
    """A server's compiler ends before the counters are read again, or between their list and their reading."""
    whole, recorded = recorded.block(), Recorded(recorded.proc.parent / "again")
    later, server = recorded.later, recorded.proc / str(SERVER)

    def later_without_the_server() -> None:
        later()
        shutil.rmtree(server)

    recorded.later = later_without_the_server  # type: ignore[method-assign]
    used = recorded.block()
    assert not used.unread and used.waited_ns == whole.waited_ns and used.wanted_ns == whole.wanted_ns


def test_an_engine_that_is_gone_itself_leaves_no_word_of_waiting(recorded: Recorded) -> None:
    recorded.later = lambda: shutil.rmtree(recorded.proc / str(ENGINE))  # type: ignore[method-assign]
    used = recorded.block()
    assert used.waited_ns is None and f"{ENGINE}/task" in used.unread["waited_ns"]


def test_cpus_that_the_run_may_not_use_do_not_count(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_counters, "usable_cpus", lambda: {1})
    assert recorded.block().busy_ns == (60 + 2) * 10 * MS


@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize(
    ("hidden", "lost"),
    [
        ("proc/stat", {"busy_ns", "stolen_ns"}),
        ("proc/100/task/100/children", {"ours_ns"}),
        ("proc/100/schedstat", {"wanted_ns", "waited_ns"}),
        ("proc/pressure/cpu", {"pressure_ns"}),
        ("cgroup/cpu.stat", {"throttled_ns"}),
    ],
)
def test_a_source_that_is_hidden_is_missing_with_its_reason_and_the_others_are_there(
    recorded: Recorded, hidden: str, lost: set[str], from_the_start: bool
) -> None:
    file = recorded.proc.parent / hidden
    if from_the_start:
        file.unlink()
    recorded.later = lambda: file.unlink(missing_ok=True)  # type: ignore[method-assign]
    used = recorded.block()
    counters = {name for name in CpuUse.__dataclass_fields__ if name.endswith("_ns") and name != "wall_ns"}
    if hidden == "proc/100/task/100/children" and not from_the_start:
        lost = set()  # processes are looked for once per block
    assert {name for name in counters if getattr(used, name) is None} == lost
    assert bool(used.unread) == bool(lost) and set(used.unread) <= lost and all(used.unread.values())


@pytest.mark.parametrize(
    ("spoil", "counter", "message"),
    [
        (lambda r: r.thread(HARNESS, HARNESS, 0, 0), "waited_ns", "keeps no account of waiting"),
        (lambda r: r.write(r.proc / "stat", "cpu  0 0\ncpu0 0 0 0 0 0 0 0 0\n"), "busy_ns", "no busy time"),
        (lambda r: r.write(r.proc / "pressure" / "cpu", "full total=3\n"), "pressure_ns", "no line `some`"),
        (lambda r: r.write(r.cgroup / "cpu.stat", "usage_usec 3\n"), "throttled_ns", "throttled_usec"),
    ],
)
def test_a_source_that_tells_nothing_is_not_taken_for_a_quiet_one(
    recorded: Recorded, spoil: Callable[[Recorded], None], counter: str, message: str
) -> None:
    spoil(recorded)
    recorded.later = lambda: None  # type: ignore[method-assign]
    used = recorded.block()
    assert getattr(used, counter) is None
    assert message in used.unread[counter]


def test_without_a_limit_of_the_control_group_nothing_is_missed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_counters, "cpu_quota", lambda: None)
    used = recorded.block()
    assert (used.throttled_ns, used.offered, used.unread) == (None, 2.0, {})


def test_a_counter_that_went_back_counts_as_nothing() -> None:
    def at(busy: int, stolen: int) -> Counters:
        return Counters(0, 1, 1.0, HARNESS, [ENGINE], None, busy={0: busy}, stolen={0: stolen}, unread={"ours_ns": "-"})

    used = between(at(50, 9), at(40, 7))
    assert (used.busy_ns, used.stolen_ns, used.ours_ns) == (0, 0, None)


# ── this machine ─────────────────────────────────────────────────────────────────────────────────────────────────────


def work(cpu_ns: int) -> None:
    while time.process_time_ns() < cpu_ns:
        pass


def test_a_process_that_works_on_this_machine_is_seen_working() -> None:
    probe, context = CpuProbe(), mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work_and_wait, args=(theirs,))
    process.start()
    assert process.pid is not None
    ours.recv()  # it has started and waits
    before, spent = probe.read(process.pid), cpu_time_ns(process.pid)
    ours.send(None)
    ours.recv()  # it has worked
    worked = cpu_time_ns(process.pid) - spent
    used = between(before, probe.read_again(before))
    ours.send(None)
    process.join()
    assert worked >= 50 * MS
    assert used.cpus == len(usable_cpus()) and used.wall_ns >= worked
    if used.ours_ns is not None:
        assert used.ours_ns >= worked
    if used.wanted_ns is not None and used.waited_ns is not None:
        # The two accounts are written at different moments: a running thread's time is up to a tick old.
        assert used.wanted_ns >= worked - 20 * MS
    assert used.ours_ns is not None or used.unread["ours_ns"]
    assert used.wanted_ns is not None or used.unread["waited_ns"]


def _work_and_wait(conn: object) -> None:
    from multiprocessing.connection import Connection

    assert isinstance(conn, Connection)
    conn.send(None)
    conn.recv()
    work(time.process_time_ns() + 60 * MS)
    conn.send(None)
    conn.recv()


def test_the_cpu_time_of_a_process_is_what_the_process_itself_reads() -> None:
    before = time.process_time_ns()
    read = cpu_time_ns(os.getpid())
    assert before <= read <= time.process_time_ns()


def test_every_counter_of_this_machine_only_grows_or_is_missing_with_its_reason() -> None:
    probe = CpuProbe()
    before = probe.read(os.getpid())
    used = between(before, probe.read_again(before))
    for name in ("busy_ns", "ours_ns", "wanted_ns", "waited_ns", "pressure_ns"):
        value = getattr(used, name)
        reason = used.unread.get("waited_ns" if name == "wanted_ns" else name)
        assert (value is None) == (reason is not None)
        assert value is None or value >= 0

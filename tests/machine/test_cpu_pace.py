"""The same work on every CPU: what it takes, and that looking leaves nothing behind."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from specgate.machine import cpu_pace
from specgate.machine.cpu_pace import MOST_CPUS, PARTS, by_cpu, work_ns
from specgate.machine.host import HostProbe, usable_cpus

BEFORE = {0, 1, 2, 7}
PINS = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot choose their CPU here")


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The sets of CPUs that the thread is sent to, in order; it stays where it is."""
    entries: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: entries.append(set(cpus)), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: BEFORE, raising=False)
    return entries


def test_the_work_takes_cpu_time_and_every_reading_of_the_host_has_it() -> None:
    began = time.thread_time_ns()
    taken = work_ns()
    assert taken is not None and 0 < PARTS * taken <= time.thread_time_ns() - began
    assert (HostProbe(os.getpid()).read().work_ns or 0) > 0


def test_a_part_that_was_interrupted_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time of an interrupt or of a cold start is in some parts, and never in all."""
    taken = [9_000, 500, 70_000, 400, 450, 410, 405, 900]
    clock = iter([at for i, ns in enumerate(taken) for at in (i * 10**6, i * 10**6 + ns)])
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(clock))
    assert len(taken) == PARTS and work_ns() == 400


def test_a_clock_that_stood_still_tells_nothing(monkeypatch: pytest.MonkeyPatch, pinned: list[set[int]]) -> None:
    """As on a system that says a fine resolution and counts in ticks."""
    monkeypatch.setattr(time, "thread_time_ns", lambda: 15_625_000)
    assert work_ns() is None and by_cpu({0, 1}) == {} and pinned == []


def test_a_clock_that_is_too_coarse_tells_nothing(monkeypatch: pytest.MonkeyPatch, pinned: list[set[int]]) -> None:
    monkeypatch.setattr(time, "get_clock_info", lambda _: SimpleNamespace(resolution=0.015_625))
    assert work_ns() is None and by_cpu({0, 1}) == {} and pinned == []


@PINS
def test_every_usable_cpu_is_tried_and_may_be_used_again() -> None:
    before = os.sched_getaffinity(0)
    result = by_cpu(usable_cpus())
    assert set(result) <= usable_cpus() and len(result) == min(len(usable_cpus()), MOST_CPUS)
    assert min(result.values()) > 0 and os.sched_getaffinity(0) == before


@pytest.mark.parametrize("many", [1, 2, MOST_CPUS, MOST_CPUS + 1, 192])
def test_of_many_cpus_some_are_tried_spread_over_all(many: int, pinned: list[set[int]]) -> None:
    usable = {3 * cpu for cpu in range(many)}
    tried = sorted(by_cpu(usable))
    assert len(tried) == min(many, MOST_CPUS) and set(tried) <= usable and tried[0] == 0
    assert all(b - a <= 3 * -(-many // MOST_CPUS) for a, b in zip(tried, [*tried[1:], 3 * many], strict=True))
    assert pinned == [*({cpu} for cpu in tried), BEFORE]


@pytest.mark.parametrize("refused", [{1}, {0, 1, 2}, {0, 1, 2, 7}])
def test_a_cpu_that_may_not_be_chosen_costs_the_check_and_no_more(
    monkeypatch: pytest.MonkeyPatch, pinned: list[set[int]], refused: set[int]
) -> None:
    """One that was switched off meanwhile; or a sandbox that refuses every choice, the way back included."""
    follow = os.sched_setaffinity

    def refuse(thread: int, cpus: set[int]) -> None:
        follow(thread, cpus)
        if set(cpus) <= refused:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    assert by_cpu([0, 1, 2]) == {} and pinned[-1] == BEFORE and {min(refused)} in pinned


def test_where_threads_cannot_choose_their_cpu_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert cpu_pace.by_cpu({0}) == {}

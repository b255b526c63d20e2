"""A fixed piece of work: the CPU time that it takes."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from specgate.machine.cpu_pace import PARTS, work_ns
from specgate.machine.host import HostProbe


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


def test_a_clock_that_stood_still_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that says a fine resolution and counts in ticks."""
    monkeypatch.setattr(time, "thread_time_ns", lambda: 15_625_000)
    assert work_ns() is None


def test_a_clock_that_is_too_coarse_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "get_clock_info", lambda _: SimpleNamespace(resolution=0.015_625))
    assert work_ns() is None

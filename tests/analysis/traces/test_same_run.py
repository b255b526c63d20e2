"""Check that a trace can be of a run, by the time at which it was recorded."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from specgate.analysis.traces.recording import Call, Recording
from specgate.analysis.traces.same_run import other_time
from tests.support.factories import blocks_of, plan_of, run_of

STARTED, ENDED = "2026-11-23T07:00:30+00:00", "2026-11-23T07:00:35+00:00"
SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds", "outside"),
    [(-0.5, True), (0.0, False), (5.4, False), (5.999, False), (6.0, True)],
)
def test_a_run_lasted_up_to_a_second_longer_than_its_whole_seconds_say(seconds: float, outside: bool) -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan), started=STARTED, ended=ENDED)
    begin = round(datetime(2026, 11, 23, 7, 0, 30, tzinfo=UTC).timestamp()) * SECOND + round(seconds * SECOND)
    recording = Recording("a profiler", [Call("cudaLaunchKernel", 0, 1000, "loop", 1)], [], [], begin_ns=begin)
    assert bool(list(other_time(recording, run))) is outside

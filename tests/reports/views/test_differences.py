"""The machine in two runs: facts of one and not of the other, and facts that both lack."""

from __future__ import annotations

from specgate.reports.views.differences import said_of
from tests.support.surroundings import SAMPLES, conditions, working


def test_how_often_the_cpus_were_slow_is_rounded_and_left_out_where_it_is_not_known() -> None:
    shared = conditions([working(s, 20_000 * (1 + i % 2)) for i, s in enumerate(SAMPLES)])
    assert said_of(shared)["slow CPUs"] == "about 50 %"
    even = said_of(conditions([working(s, 20_000) for s in SAMPLES]))
    assert even["slow CPUs"] == "about 0 %"
    assert said_of(conditions(SAMPLES)) == {name: what for name, what in even.items() if name != "slow CPUs"}

"""Requests of an open loop arrive at random, and the same for every role of a round."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.load import Load, OfferedLoad
from specgate.planning.arrivals import offered_load, poisson
from specgate.planning.plan import build_plan
from tests.support.factories import scenario

OPEN = replace(scenario("s", "full", batch=(8,)), kind="load", load=Load(50, rates=(2.0, 20.0)))


def test_the_gaps_of_a_poisson_process_are_exponential_with_the_mean_of_its_rate() -> None:
    """By the law of the exponential: mean and standard deviation are 1 / rate, and e⁻¹ of the gaps are longer."""
    times = (0, *poisson("seed", 20_000, 4.0))
    gaps = [(b - a) / 1e9 for a, b in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.01)


@given(st.text(max_size=8), st.integers(1, 200), st.floats(1e-3, 1e5))
def test_arrivals_ascend_and_follow_from_the_seed(seed: str, count: int, rate: float) -> None:
    times = poisson(seed, count, rate)
    assert len(times) == count and list(times) == sorted(times) and times[0] >= 0
    assert times == poisson(seed, count, rate)


def test_every_round_has_arrivals_of_its_own_and_every_rate_its_point() -> None:
    plan = build_plan([OPEN], "fake")
    assert [p.key for p in plan.points] == ["s/fake/c64/b8/q2", "s/fake/c64/b8/q20"]
    offers = [offered_load(OPEN, round_).arrivals_ns for round_ in plan.rounds]
    assert len(set(offers)) == len(offers) and {len(times) for times in offers} == {50}


def test_a_closed_loop_has_as_many_clients_as_its_level() -> None:
    closed = replace(OPEN, grid=replace(OPEN.grid, batch=(1, 4)), load=Load(4, per_client=3))
    plan = build_plan([closed], "fake")
    assert {offered_load(closed, r) for r in plan.rounds} == {OfferedLoad(clients=1), OfferedLoad(clients=4)}
    assert [closed.prompts_in_set(p.batch) for p in plan.points] == [4, 12]

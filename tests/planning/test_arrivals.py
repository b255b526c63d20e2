"""Requests arrive as their kind says, at the rate that is asked for, and the same for every role of a round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.load import Load, OfferedLoad
from specgate.planning.arrivals import offered_load, stretched, unit_arrivals
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompt
from tests.support.factories import scenario

OPEN = replace(scenario("s", "full", batch=(8,)), kind="load", load=Load(50, rates=(2.0, 20.0)))


FEW = [Prompt((1,), ())] * 50


def times(load: Load, count: int, seed: str = "seed") -> Sequence[float]:
    return list(islice(unit_arrivals(load, seed), count))


@pytest.mark.parametrize(
    ("load", "sd"),
    [
        (Load(1), 1.0),
        (Load(1, arrivals="gamma", burstiness=0.25), 2.0),
        (Load(1, arrivals="gamma", burstiness=4), 0.5),
        (Load(1, arrivals="constant"), 0.0),
    ],
)
def test_gaps_have_the_mean_and_the_scatter_of_their_law(load: Load, sd: float) -> None:
    """The standard deviation of a gamma distribution of shape k and mean 1 is k^-½; the exponential one has k = 1."""
    gaps = [b - a for a, b in pairwise((0.0, *times(load, 20_000)))]
    assert statistics.fmean(gaps) == pytest.approx(1, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(sd, rel=0.05)
    if load.arrivals == "poisson":
        assert sum(gap > 1 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.01)


@given(st.text(max_size=8), st.integers(1, 100), st.floats(1e-3, 1e5), st.floats(0, 100))
def test_arrivals_ascend_and_follow_from_the_seed(seed: str, count: int, rate: float, ramp: float) -> None:
    load = Load(1, ramp_s=ramp)
    made = [stretched(load, rate, unit) for unit in times(load, count, seed)]
    assert made == sorted(made) == [stretched(load, rate, unit) for unit in times(load, count, seed)]
    for unit, at in zip(times(load, count, seed), made, strict=True):
        assert load.expected(rate, at) == pytest.approx(unit), "so many are expected until then"


def test_a_block_at_a_rate_has_the_requests_that_are_expected_in_its_time() -> None:
    """Over a ramp of 2 s half of them come: at 3 per second, 3 in 2 s and 12 in the 4 s that follow."""
    assert Load(50, rates=(3.0,), ramp_s=2, duration_s=6).in_block(8, 3.0) == 15
    assert Load(50, rates=(3.0,)).in_block(8, 3.0) == 50


def test_every_round_has_arrivals_of_its_own_and_every_rate_its_point() -> None:
    plan = build_plan([OPEN], "fake")
    assert [p.key for p in plan.points] == ["s/fake/c64/b8/q2", "s/fake/c64/b8/q20"]
    offers = [offered_load(OPEN, round_, FEW).arrivals_ns for round_ in plan.rounds]
    assert len(set(offers)) == len(offers) and {len(times) for times in offers} == {50}


def test_a_trace_is_replayed_at_each_rate_with_its_lengths() -> None:
    """Five requests from the middle of a trace: bunches keep their shape, at 2 per second half as fast as at 4."""
    load = replace(OPEN, load=Load(5, rates=(2.0, 4.0), arrivals="trace"))
    prompts = [Prompt((1,), (), due, 7 + i) for i, due in enumerate((10.0, 10.0, 12.0, 12.5, 20.0))]
    slow, fast = (
        offered_load(load, next(r for r in build_plan([load], "fake").rounds if r.point.rate == rate), prompts)
        for rate in (2.0, 4.0)
    )
    assert slow.arrivals_ns == (0, 0, 10**9, 1_250_000_000, 5 * 10**9)
    assert fast.arrivals_ns == tuple(at // 2 for at in slow.arrivals_ns)
    assert slow.new_tokens == fast.new_tokens == (7, 8, 9, 10, 11)


def test_a_closed_loop_has_as_many_clients_as_its_level() -> None:
    closed = replace(OPEN, grid=replace(OPEN.grid, batch=(1, 4)), load=Load(4, per_client=3))
    plan = build_plan([closed], "fake")
    assert {offered_load(closed, r, FEW) for r in plan.rounds} == {OfferedLoad(clients=1), OfferedLoad(clients=4)}
    assert [closed.prompts_in_set(p.batch) for p in plan.points] == list(closed.set_sizes) == [4, 12]
    timed = replace(closed, load=Load(4, duration_s=2, ramp_s=1))
    assert {offered_load(timed, r, FEW).until_ns for r in plan.rounds} == {2 * 10**9}
    assert list(OfferedLoad(4, ramp_ns=100).starts_ns()) == [0, 25, 50, 75]

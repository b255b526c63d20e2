"""Sending times of the requests of one block of a load scenario: by clients that wait, or at times drawn beforehand.

The times of an open loop are a Poisson process: the gaps between arrivals are independent and exponential. They follow
from the scenario's seed, the level, the prompt set and the round, and not from the role. So the baseline and the
speculative block of a pair are offered the same load, second by second.
"""

from __future__ import annotations

import math
import random

from specgate.contract import Point, Round, Scenario
from specgate.contract.load import OfferedLoad


def offered_load(scenario: Scenario, round_: Round) -> OfferedLoad:
    """Return the load that a block of `round_` offers the engine. The scenario must be one of `kind: load`."""
    assert scenario.load is not None
    point = round_.point
    if point.rate is None:
        return OfferedLoad(clients=point.batch)
    return OfferedLoad(arrivals_ns=poisson(seed_of(scenario, point, round_), scenario.load.requests, point.rate))


def seed_of(scenario: Scenario, point: Point, round_: Round) -> str:
    pool = "warmup" if round_.warmup else "measure"
    return f"{scenario.workload.seed} arrivals {point.context} {point.rate!r} {pool} {round_.prompt_set} {round_.index}"


def poisson(seed: str, count: int, rate: float) -> tuple[int, ...]:
    """The first `count` arrivals of a Poisson process of `rate` per second, in nanoseconds, ascending.

    A gap is −ln(1 − u) / rate with u uniform in [0, 1), which is exponential (inverse transform). `random.Random` gives
    the same u for a seed in every version of Python.
    """
    source = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        at -= math.log1p(-source.random()) / rate
        times.append(round(at * 1e9))
    return tuple(times)

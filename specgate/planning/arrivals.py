"""Sending times of the requests of one block of a load scenario: by clients that wait, or at times drawn beforehand.

The times of an open loop follow from the scenario's seed, the level, the prompt set and the round, and not from the
role. So the baseline and the speculative block of a pair are offered the same load, second by second. They are drawn or
read at a mean rate of one per unit of time, and then stretched to the rate, which may rise from 0 at first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice

from specgate.contract import Point, Round, Scenario
from specgate.contract.load import Load, OfferedLoad
from specgate.planning.prompts import Prompt


def offered_load(scenario: Scenario, round_: Round, prompts: Sequence[Prompt]) -> OfferedLoad:
    """Return the load that a block of `round_` over `prompts` offers the engine. The scenario must be one of
    `kind: load`.
    """
    load, point = scenario.load, round_.point
    assert load is not None
    lengths = tuple(prompt.new_tokens for prompt in prompts if prompt.new_tokens is not None)
    if point.rate is None:
        until = None if load.duration_s is None else round(load.duration_s * 1e9)
        return OfferedLoad(point.batch, ramp_ns=round(load.ramp_s * 1e9), until_ns=until, new_tokens=lengths)
    if load.arrivals == "trace":
        first = prompts[0].due
        at: Iterator[float] = (prompt.due - first for prompt in prompts)
    else:
        at = unit_arrivals(load, seed_of(scenario, point, round_))
    due = (stretched(load, point.rate, unit) for unit in islice(at, len(prompts)))
    return OfferedLoad(arrivals_ns=tuple(round(seconds * 1e9) for seconds in due), new_tokens=lengths)


def seed_of(scenario: Scenario, point: Point, round_: Round) -> str:
    pool = "warmup" if round_.warmup else "measure"
    return f"{scenario.workload.seed} arrivals {point.context} {point.rate!r} {pool} {round_.prompt_set} {round_.index}"


def unit_arrivals(load: Load, seed: str) -> Iterator[float]:
    """Yield arrival times of one per unit of time on average, ascending, without end.

    A gap is the inverse of its distribution function at u, uniform in [0, 1): of the exponential one it is −ln(1 − u),
    of the gamma one with shape k and mean 1 it is P⁻¹(k, u)/k. `random.Random` gives the same u for a seed in every
    version of Python.
    """
    source, at = random.Random(seed), 0.0
    while True:
        match load.arrivals:
            case "constant":
                at += 1.0
            case "gamma":
                from scipy.special import gammaincinv

                at += float(gammaincinv(load.burstiness, source.random())) / load.burstiness
            case _:
                at -= math.log1p(-source.random())
        yield at


def stretched(load: Load, rate: float, unit: float) -> float:
    """Return the time in seconds by which `unit` arrivals are expected (`Load.expected`), which its ramp delays."""
    if unit < rate * load.ramp_s / 2:
        return math.sqrt(2 * load.ramp_s * unit / rate)
    return unit / rate + load.ramp_s / 2

"""Kinds of noise of simulated pairs, over the turns of a real plan.

Each gives what is added to the true log-ratio of every pair, float64 [runs, pairs]. Over a plan its expectation is 0.
`sd` is the noise of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specgate.contract import BASELINE, Scenario
from specgate.planning.plan import build_plan

Floats = NDArray[np.float64]
Draw = np.random.Generator

DRIFT = "spec 1 % slower by the end"
"""Not simulated for a run that is continued: it has no one true ratio, since each look would find another."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Order of a plan: per pair, its prompt set and whether the baseline runs first (+1) or second (−1).

    `by_load`: whether neighbouring pairs of one order are measured role by role, each role from a load of its own,
    which the neighbouring group of pairs shares.
    """

    prompt_sets: tuple[int, ...]
    orders: tuple[int, ...]
    by_load: bool = False

    @property
    def groups(self) -> NDArray[np.int64]:
        """Group of each pair, counted in running order."""
        return np.cumsum(np.diff(self.orders, prepend=self.orders[0]) != 0)

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Place of each pair's first block and of its second one among all blocks, in running order."""
        count = np.arange(len(self.orders))
        if not self.by_load:
            return 2 * count, 2 * count + 1
        begin = np.searchsorted(self.groups, self.groups)
        sizes = np.bincount(self.groups)[self.groups]
        return begin + count, begin + count + sizes

    @classmethod
    def of(cls, scenario: Scenario) -> Turns:
        """The turns of a scenario's first point."""
        plan = build_plan([scenario], "simulated")
        rounds = [r for r in plan.rounds_of(plan.points[0]) if not r.warmup]
        orders = tuple(1 if r.order[0] == BASELINE else -1 for r in rounds)
        return cls(tuple(r.prompt_set for r in rounds), orders, scenario.schedule.by_load)


def independent(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    return noise.normal(0.0, sd, (runs, len(turns.orders)))


def heavy_tailed(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """Student's t with 3 degrees of freedom, whose variance is 3."""
    return noise.standard_t(3, (runs, len(turns.orders))) * (sd / math.sqrt(3))


def smoothed(values: Floats, rho: float) -> Floats:
    """AR(1) with `rho` and the variance of its independent innovations `values`, which it overwrites."""
    for i in range(1, values.shape[1]):
        values[:, i] = rho * values[:, i - 1] + math.sqrt(1 - rho * rho) * values[:, i]
    return values


def autoregressive(rho: float, share: float, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The ratio itself is AR(1): that share of its variance. The rest is white noise."""
    slow = smoothed(independent(runs, turns, sd * math.sqrt(share), noise), rho)
    return slow if share == 1 else slow + independent(runs, turns, sd * math.sqrt(1 - share), noise)


def spread_by_prompt(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The standard deviation differs by prompt set: log-normal, a factor of e either way."""
    factors = np.exp(noise.normal(0.0, 1.0, (runs, max(turns.prompt_sets) + 1)))
    factors /= np.sqrt((factors**2).mean(axis=1, keepdims=True))
    return independent(runs, turns, sd, noise) * factors[:, turns.prompt_sets]


def drifting_role(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The candidate is 1 % slower by the end."""
    when = np.linspace(-0.5, 0.5, len(turns.orders))
    return independent(runs, turns, sd, noise) - 0.01 * when


def slowed(turns: Turns, blocks: Floats, base: float, spec: float) -> Floats:
    """The log-ratio of pairs whose blocks [runs, blocks] are slower by `base` or `spec` times these values."""
    forward = np.asarray(turns.orders) > 0
    first, second = (blocks[:, places] for places in turns.places)
    ratios: Floats = np.where(forward, base * first - spec * second, base * second - spec * first)
    return ratios


def clock_state(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """A clock that is low half of the time, for 16 blocks on average: it costs spec 3.0 and the baseline 2.4 %."""
    turned = np.cumsum(noise.random((runs, 2 * len(turns.orders))) < 1 / 16, axis=1)
    low = ((turned + (noise.random((runs, 1)) < 0.5)) % 2).astype(float)
    return independent(runs, turns, sd, noise) + slowed(turns, low, 0.024, 0.030) + 0.5 * 0.006


def wandering_clock(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """A clock that wanders by 2 % (sd, AR(1) 0.98 from block to block); the baseline follows by 0.8 of it."""
    clock = smoothed(noise.normal(0.0, 0.02, (runs, 2 * len(turns.orders))), 0.98)
    return independent(runs, turns, sd, noise) + slowed(turns, clock, 0.8, 1.0)


def step(size: float, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The ratio steps by `size` at a random place, up or down. The true one is its mean over the plan."""
    count = len(turns.orders)
    after = noise.choice((-1.0, 1.0), (runs, 1)) * (np.arange(count) >= noise.integers(0, count, (runs, 1)))
    centred: Floats = size * (after - after.mean(axis=1, keepdims=True))
    return independent(runs, turns, sd, noise) + centred


def every(period: int, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """Every `period`th block is 5 % slow, from a random one on."""
    places = np.arange(2 * len(turns.orders)) + noise.integers(0, period, (runs, 1))
    return independent(runs, turns, sd, noise) + slowed(turns, (places % period == 0).astype(float), 0.05, 0.05)


def stalls(share: float, size: float, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """So many blocks of either role are slow by `size`."""
    slow = (noise.random((runs, 2 * len(turns.orders))) < share).astype(float)
    return independent(runs, turns, sd, noise) + slowed(turns, slow, size, size)


def spec_stalls(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """One spec block in 100 is 20 % slow. The true ratio has them in it."""
    slow = noise.random((runs, len(turns.orders))) < 0.01
    return independent(runs, turns, sd, noise) - 0.2 * (slow - 0.01)


def first_slow(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The first block of a round is 1 % slow."""
    slow = np.zeros((runs, 2 * len(turns.orders)))
    slow[:, turns.places[0]] = 1.0
    return independent(runs, turns, sd, noise) + slowed(turns, slow, 0.01, 0.01)


def cold(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The first pair of all is 3.4 % off, as the first block of a server was that had just started."""
    values = independent(runs, turns, sd, noise)
    values[:, 0] += 0.034
    return values


def by_pass(size: float | None, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """All rounds of one pass over the prompt sets share an effect of this sd (None: that of a pair)."""
    sets = max(turns.prompt_sets) + 1
    shared = noise.normal(0.0, sd if size is None else size, (runs, -(-len(turns.orders) // sets)))
    return independent(runs, turns, sd, noise) + shared[:, np.arange(len(turns.orders)) // sets]


def order_by_set(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The effect of the order is 2 %, and differs by prompt set by as much (sd)."""
    effects = 0.02 + noise.normal(0.0, 0.02, (runs, max(turns.prompt_sets) + 1))
    of_order: Floats = effects[:, turns.prompt_sets] * np.asarray(turns.orders)
    return independent(runs, turns, sd, noise) + of_order


def of_process(process_sd: float, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """Ratios differ between processes by `process_sd`; between loads, each role has its part of it."""
    if not turns.by_load:
        return independent(runs, turns, sd, noise) + noise.normal(0.0, process_sd, (runs, 1))
    loads = noise.normal(0.0, process_sd / math.sqrt(2), (2, runs, turns.groups[-1] + 2))
    base, spec = loads[0][:, (turns.groups + 1) // 2], loads[1][:, turns.groups // 2]
    of_loads: Floats = spec - base
    return independent(runs, turns, sd, noise) + of_loads


def everything(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """AR(1) 0.9 with innovations of heavy tails, processes that differ by 0.3 %, and 1 block in 100 slow by 20 %."""
    slow = smoothed(heavy_tailed(runs, turns, sd, noise), 0.9)
    return slow + of_process(0.003, runs, turns, 0.0, noise) + stalls(0.01, 0.2, runs, turns, 0.0, noise)


Noise = Callable[[int, Turns, float, Draw], Floats]

NOISES: Mapping[str, Noise] = {
    "independent": independent,
    "heavy tails (t, 3 degrees)": heavy_tailed,
    "1 block in 100 +20 %": partial(stalls, 0.01, 0.2),
    "1 spec block in 100 +20 %": spec_stalls,
    "1 block in 13 +3 %": partial(stalls, 1 / 13, 0.03),
    "every 8th block +5 %": partial(every, 8),
    "every 4th block +5 %": partial(every, 4),
    "first block of a round +1 %": first_slow,
    "first pair of the run +3.4 %": cold,
    "spread differs by prompt set": spread_by_prompt,
    "order effect differs by set, 2 %": order_by_set,
    "AR(1) 0.5": partial(autoregressive, 0.5, 1.0),
    "AR(1) 0.9": partial(autoregressive, 0.9, 1.0),
    "AR(1) 0.9, half white": partial(autoregressive, 0.9, 0.5),
    "AR(1) 0.9, three quarters white": partial(autoregressive, 0.9, 0.25),
    "a clock state, 3.0 and 2.4 %": clock_state,
    "a clock that wanders by 2 %": wandering_clock,
    "a step of the ratio by 0.6 %": partial(step, 0.006),
    DRIFT: drifting_role,
    "pass to pass, sd 0.5 %": partial(by_pass, 0.005),
    "process sd 0.02 %": partial(of_process, 0.0002),
    "process sd 0.2 %": partial(of_process, 0.002),
    "process sd 0.45 %": partial(of_process, 0.0045),
    "process sd 0.6 %": partial(of_process, 0.006),
    "all: AR(1) 0.9, heavy tails, process 0.3 %, slow blocks": everything,
}
BEYOND: Mapping[str, Noise] = {
    "AR(1) 0.97": partial(autoregressive, 0.97, 1.0),
    "AR(1) 0.97, half white": partial(autoregressive, 0.97, 0.5),
    "pass to pass, sd of a pair": partial(by_pass, None),
    "a step of the ratio by 2 %": partial(step, 0.02),
}
"""What the claims leave out."""

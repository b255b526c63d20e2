"""Error rate and power of speed verdicts, on simulated pairs at the shipped schedules.

    python -m bench.simulations.gate_simulation --runs 20000

Every shipped schedule (prompt sets × rounds) meets every kind of noise of NOISES, with the true ratio exactly at the
floor: there, PASS and FAIL are both wrong. The same at 1 and 3 % from the floor gives the power. Prompt sets differ by
10 % (standard deviation). The orders of the roles are those of real plans, drawn anew for every tenth of the runs.
`tests/analysis/intervals/test_decision.py` compares the vectorised rule used here with the one that judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import click
import numpy as np
from numpy.typing import NDArray
from scipy import special

from specgate.analysis.intervals.autocorrelation import PRIOR_FREEDOM, PRIOR_SD, model_of
from specgate.analysis.intervals.between_runs import ASSUMED, LEAST
from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS, false_fail, spent, tail
from specgate.analysis.stats import FIRST_LOOK, MIN_PAIRS, planned_interim_looks
from specgate.contract import BASELINE, PASS_ROUNDS, Scenario, Schedule
from specgate.planning.plan import build_plan
from specgate.planning.scenario import find, shipped

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Draw = np.random.Generator

PROMPT_SPREAD = 0.1
PLANS = 10
"""Drawn orders of the roles per figure."""
DRIFT = "spec 1 % slower by the end"
"""Not simulated for a run that is continued: it has no one true ratio, since each look would find another."""
SIZES = (0.001, 0.01, 0.05)
"""Noise of a pair: as in micro runs on an H200, in full runs there, and on a shared CPU."""
PROFILED = 16
"""Pairs that give the profile its standard deviation of a pair, at most."""
PROCESSES = 5
"""Processes of a simulated noise profile, as `specgate machine calibrate` measures by default."""


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


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each kind gives what is added to the true log-ratio of every pair, float64 [runs, pairs]. Over a plan its expectation
# is 0. `sd` is the noise of a pair.


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

# ── the rule ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Between:
    """Spread between processes that each simulated run allows for: a standard deviation per run, its freedom, the
    least that is allowed for beside it, and the standard deviation of a pair that is expected.
    """

    sd: Floats
    freedom: float
    least: float = 0.0
    pair_sd: float | Floats = PRIOR_SD

    @classmethod
    def assumed(cls, runs: int) -> Between:
        """Without a noise profile."""
        return cls(np.full(runs, ASSUMED.process_sd), math.inf)

    @classmethod
    def measured(cls, noise_of: Noise, runs: int, turns: Turns, sd: float, noise: Draw) -> Between:
        """With a profile of PROCESSES processes under the same noise, as `specgate machine calibrate` measures it."""
        pairs = PASS_ROUNDS * (max(turns.prompt_sets) + 1)
        once = Turns(turns.prompt_sets[:pairs], turns.orders[:pairs], turns.by_load)
        means = noise_of(runs * PROCESSES, once, sd, noise).mean(axis=1)
        paired = Turns(turns.prompt_sets[:PROFILED], turns.orders[:PROFILED], turns.by_load)
        model = model_of(paired.orders, paired.prompt_sets, tuple(range(len(paired.orders))))
        pair_sd = np.sqrt(model.squares(noise_of(runs, paired, sd, noise))[:, 0] / model.freedom)
        sds = means.reshape(runs, PROCESSES).std(axis=1, ddof=1)
        return cls(sds, PROCESSES - 1, LEAST, np.maximum(pair_sd, PRIOR_SD))

    def half_width(self, error: float) -> Floats:
        """`intervals.between_runs.half_width` of every run."""
        measured: Floats = special.stdtrit(self.freedom, 1 - error) * self.sd
        return np.maximum(measured, special.ndtri(1 - error) * self.least)


@dataclass(frozen=True, slots=True)
class Outcome:
    """For each simulated run: whether it ended above or below the floor, and after how many pairs."""

    above: Flags
    below: Flags
    pairs: NDArray[np.int64]

    @classmethod
    def of_all(cls, parts: Sequence[Outcome]) -> Outcome:
        """Return the runs of all `parts`, one after the other."""
        columns = zip(*((part.above, part.below, part.pairs) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def worst(cls, outcomes: Sequence[Outcome]) -> tuple[float, float]:
        """(largest share above the floor, largest share below it) of several simulations, in percent."""
        above, below = (
            100 * max(float(flags.mean()) for flags in side)
            for side in zip(*((o.above, o.below) for o in outcomes), strict=True)
        )
        return above, below


def sequential(
    d: Floats,
    turns: Turns,
    looks: Sequence[int],
    between: Between,
    floor: float | Floats = 0.0,
    fail: float = FALSE_FAIL,
    *,
    alone: bool = False,
) -> Outcome:
    """`intervals.decision.decide` for many runs at once. `floor` is on the log scale, one for all or one per run.
    `d`: float64 [runs, rounds], of fewer rounds than the last look where what they are held against has no more.
    """
    runs = len(d)
    above, below = np.zeros(runs, bool), np.zeros(runs, bool)
    pairs = np.full(runs, looks[-1])
    for number, look in enumerate(looks, 1):
        so_far = d[:, :look]
        here = so_far.shape[1]
        if here < MIN_PAIRS:
            continue
        model = model_of(turns.orders[:here], turns.prompt_sets[:here], tuple(range(here)))
        squares = model.squares(so_far)
        own = model.errors(squares).max(axis=1)
        prior = np.broadcast_to(PRIOR_FREEDOM * np.square(between.pair_sd), (runs,))
        leaning = model.errors(squares, prior[:, None]).max(axis=1)
        mean = so_far @ model.weights

        def reach(
            error: float,
            look: int = number,
            own: Floats = own,
            leaning: Floats = leaning,
            freedom: int = model.freedom,
        ) -> Floats:
            share = spent(error, look)
            if alone:
                return np.hypot(special.stdtrit(freedom, 1 - tail(share)) * own, between.half_width(spent(error, 1)))
            at = 1 - tail(share / 2)
            nearer = np.minimum(
                special.stdtrit(freedom, at) * own, special.stdtrit(freedom + PRIOR_FREEDOM, at) * leaning
            )
            assumed = math.isinf(between.freedom)
            return np.hypot(nearer, between.half_width(1 - at if assumed else share / 2))

        still = ~(above | below)
        above |= still & (mean - reach(FALSE_PASS) >= floor)
        below |= still & (mean + reach(fail) < floor)
        pairs[still & (above | below)] = look
    return Outcome(above, below, pairs)


def simulate(
    plan: Scenario | Simulated,
    kind: str,
    runs: int,
    sd: float,
    noise: Draw,
    *,
    effect: float = 0.0,
    profile: bool = False,
    blind: Between | None = None,
    fail: float = FALSE_FAIL,
) -> Outcome:
    """`runs` runs of a scenario whose true log-ratio lies `effect` above the floor.

    `profile`: whether they have a noise profile, measured under the same noise. `blind`: what all of them allow for
    between processes instead.
    """
    plan = plan if isinstance(plan, Simulated) else planned(plan)
    outcomes, noise_of = [], {**NOISES, **BEYOND}[kind]
    for part in np.array_split(np.arange(runs), min(PLANS, runs)):
        seed = int(noise.integers(1 << 32))
        workload = replace(plan.scenario.workload, seed=seed)
        turns = Turns.of(replace(plan.scenario, workload=workload))
        count = len(part)
        of_prompt = noise.normal(0.0, plan.prompt_spread, (count, workload.prompt_sets))
        of_prompt -= of_prompt.mean(axis=1, keepdims=True)
        d = effect + noise_of(count, turns, sd, noise) + of_prompt[:, turns.prompt_sets]
        between = Between.measured(noise_of, count, turns, sd, noise) if profile else Between.assumed(count)
        outcomes.append(sequential(d, turns, plan.looks, between if blind is None else blind, fail=fail))
    return Outcome.of_all(outcomes)


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Simulated:
    """A scenario of one point and its looks. `prompt_spread`: sd of the ratios of prompt sets."""

    scenario: Scenario
    looks: tuple[int, ...]
    prompt_spread: float = PROMPT_SPREAD


TEMPLATE = replace(find("cpu-1k-single"), grid=replace(find("cpu-1k-single").grid, context=(64,)))


def schedules() -> dict[str, Scenario]:
    """`sets × rounds` → a scenario, for every shipped schedule; and two that were continued with more rounds."""
    shapes = sorted({(s.workload.prompt_sets, s.schedule.rounds) for s in shipped()} | {(4, 2), (4, 4)})
    plans = {f"{sets} × {rounds}": scheduled(sets, Schedule(rounds, 1)) for sets, rounds in shapes}
    return plans | {
        "8 × 4, by load": scheduled(8, Schedule(4, 1, by_load=True)),
        "8 × 4, continued to 8": scheduled(8, Schedule(8, 1, extended=(4,))),
        "8 × 4, continued to 32": scheduled(8, Schedule(32, 1, extended=(4, 8, 16))),
    }


def until_decided() -> dict[str, Simulated]:
    """Points that are measured until they are decided, whose time is spent after 128 pairs."""
    made = {}
    for sets in (2, 8):
        rounds = Schedule(128 // sets, 1)
        looks = planned_interim_looks(scheduled(sets, replace(rounds, until="decided")))
        made[f"{sets} sets until decided"] = Simulated(
            scheduled(sets, rounds), tuple(n for n in looks if n <= 128), 0.0
        )
    return made


def planned(scenario: Scenario) -> Simulated:
    return Simulated(scenario, planned_interim_looks(scenario))


def scheduled(sets: int, schedule: Schedule) -> Scenario:
    return replace(TEMPLATE, workload=replace(TEMPLATE.workload, prompt_sets=sets), schedule=schedule)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def at_the_floor(runs: int, noise: Draw, *, profile: bool) -> Iterator[str]:
    """Lines of a Markdown table: false PASS / false FAIL in percent, per kind of noise and schedule; each the largest
    over SIZES.
    """
    plans = {**{name: planned(s) for name, s in schedules().items()}, **until_decided()}
    yield f"| noise | {' | '.join(plans)} |"
    yield f"|---{'|---' * len(plans)}|"
    for kind in {**NOISES, **BEYOND}:
        outcomes = [
            "–"
            if kind == DRIFT and len(s.looks) > 2
            else rates([simulate(s, kind, runs, sd, noise, profile=profile) for sd in SIZES])
            for s in plans.values()
        ]
        yield f"| {kind} | {' | '.join(outcomes)} |"


def rates(outcomes: Sequence[Outcome]) -> str:
    above, below = Outcome.worst(outcomes)
    return "0 / 0" if above == below == 0 else f"{above:.2f} / {below:.2f}"


def unseen(runs: int, noise: Draw) -> Iterator[str]:
    """Lines of a Markdown table: the same at the noise of H200 micro runs, with a profile whose processes did
    not differ at all, for noise that comes after it was measured; without and with LEAST.
    """
    plans = {name: s for name, s in schedules().items() if s.schedule.rounds * s.workload.prompt_sets >= FIRST_LOOK}
    yield f"| noise | allowed for at the least | {' | '.join(plans)} |"
    yield f"|---|---{'|---' * len(plans)}|"
    for kind in ("a clock state, 3.0 and 2.4 %", DRIFT):
        for least in (0.0, LEAST):
            blind = Between(np.zeros(1), PROCESSES - 1, least)
            shares = [rates([simulate(s, kind, runs, SIZES[0], noise, blind=blind)]) for s in plans.values()]
            yield f"| {kind} | {100 * least:.2g} % | {' | '.join(shares)} |"


def power(runs: int, noise: Draw, *, profile: bool) -> Iterator[str]:
    """Lines of a Markdown table: how often a cell that lies off its floor gets its PASS or FAIL, and after how many
    pairs.
    """
    plans = schedules()
    yield f"| pair sd, off the floor | {' | '.join(plans)} |"
    yield f"|---{'|---' * len(plans)}|"
    for sd in SIZES:
        for percent in (3, 1, -1, -3, -10):
            outcomes = []
            for scenario in plans.values():
                kind = "process sd 0.02 %" if profile else "independent"
                effect = math.log1p(percent / 100)
                out = simulate(scenario, kind, runs, sd, noise, effect=effect, profile=profile)
                right = out.above if percent > 0 else out.below
                outcomes.append(f"{100 * right.mean():.1f} ({out.pairs.mean():.0f})")
            what = "PASS" if percent > 0 else "FAIL"
            yield f"| {100 * sd:g} %, {percent:+d} %: {what} | {' | '.join(outcomes)} |"


def many(runs: int, noise: Draw) -> Iterator[str]:
    """Lines of a Markdown table: at least one false FAIL in percent, by how many decisions are required. Their noises
    have nothing in common.
    """
    plans = {**{name: planned(s) for name, s in schedules().items()}, **until_decided()}
    counts = (1, 4, 12, 34)
    yield f"| noise, pair sd | schedule | {' | '.join(map(str, counts))} |"
    yield f"|---|---{'|---' * len(counts)}|"
    for kind, sd in (("AR(1) 0.9", 0.05), ("AR(1) 0.9, half white", 0.05), ("process sd 0.6 %", 0.001)):
        for name in ("4 × 8", "8 × 2", "8 × 4", "12 × 2", "8 × 4, continued to 8", *until_decided()):
            alone = [simulate(plans[name], kind, runs, sd, noise, fail=false_fail(True, n)).below for n in counts]
            shares = [1 - (1 - float(below.mean())) ** n for n, below in zip(counts, alone, strict=True)]
            yield f"| {kind}, {100 * sd:g} % | {name} | {' | '.join(f'{100 * share:.2f}' for share in shares)} |"


def times(runs: int, noise: Draw) -> Iterator[str]:
    """Lines of a Markdown table: pairs after which 90 % of the points pass that are measured until they are decided."""
    ratios = (1.03, 1.05, 1.10, 1.3, 1.8, 2.38)
    yield f"| pair sd | schedule | {' | '.join(map(str, ratios))} |"
    yield f"|---|---{'|---' * len(ratios)}|"
    for kind, sd in [("independent", sd) for sd in (0.001, 0.01, 0.033, 0.1)] + [
        ("first pair of the run +3.4 %", 0.001),
        ("AR(1) 0.9", 0.033),
        ("AR(1) 0.9, half white", 0.033),
    ]:
        for name, plan in until_decided().items():
            ends = []
            for ratio in ratios:
                out = simulate(plan, kind, runs, sd, noise, effect=math.log(ratio), fail=false_fail(True, 8))
                last = np.sort(np.where(out.above, out.pairs, 1 << 30))[math.ceil(0.9 * runs) - 1]
                ends.append(f"{last}" if last < 1 << 30 else f"– ({100 * out.above.mean():.0f} %)")
            yield f"| {kind}, {100 * sd:g} % | {name} | {' | '.join(ends)} |"


@click.command()
@click.option("--runs", default=20_000, show_default=True, type=click.IntRange(100))
@click.option("--seed", default=1, show_default=True)
def main(runs: int, seed: int) -> None:
    """Print error rates and power as Markdown tables."""
    noise = np.random.default_rng(seed)
    for profile in (False, True):
        title = "a profile of 5 processes" if profile else "no profile"
        click.echo(f"\nAt the floor, {title}: false PASS / false FAIL, % of {runs} runs\n")
        for line in at_the_floor(runs, noise, profile=profile):
            click.echo(line)
    for profile in (False, True):
        title = "a profile of 5 processes that differ by 0.02 %" if profile else "no profile"
        click.echo(f"\nPower, {title}: share decided rightly, % of {runs // 4} runs (pairs on average)\n")
        for line in power(runs // 4, noise, profile=profile):
            click.echo(line)
    click.echo(f"\nAt the floor, a profile that saw no spread: false PASS / false FAIL, % of {runs // 2} runs\n")
    for line in unseen(runs // 2, noise):
        click.echo(line)
    click.echo(f"\nAt least one false FAIL, by the number of required decisions, % of {runs} runs\n")
    for line in many(runs, noise):
        click.echo(line)
    click.echo(f"\nPairs until 90 % of {runs // 10} runs pass at a floor of 1\n")
    for line in times(runs // 10, noise):
        click.echo(line)


if __name__ == "__main__":
    main()

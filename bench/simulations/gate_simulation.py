"""Error rate and power of speed verdicts, on simulated pairs at the shipped schedules.

    python -m bench.simulations.gate_simulation --runs 20000

Every shipped schedule (prompt sets × rounds) meets every kind of noise of `noises`, with the true ratio exactly at the
floor: there, PASS and FAIL are both wrong. The same at 1 and 3 % from the floor gives the power. Prompt sets differ by
10 % (standard deviation). The orders of the roles are those of real plans, drawn anew for every tenth of the runs.
`tests/analysis/intervals/test_decision.py` compares the vectorised rule used here with the one that judges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click
import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.simulations.noises import BEYOND, DRIFT, NOISES, Draw, Floats, Noise, Turns
from specgate.analysis.intervals.autocorrelation import PRIOR_FREEDOM, PRIOR_SD, model_of
from specgate.analysis.intervals.between_runs import ASSUMED, LEAST
from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS, false_fail, spent, tail
from specgate.analysis.stats import FIRST_LOOK, MIN_PAIRS, planned_interim_looks
from specgate.contract import PASS_ROUNDS, Scenario, Schedule
from specgate.planning.scenario import find, shipped

Flags = NDArray[np.bool_]

PROMPT_SPREAD = 0.1
PLANS = 10
"""Drawn orders of the roles per figure."""
SIZES = (0.001, 0.01, 0.05)
"""Noise of a pair: as in micro runs on an H200, in full runs there, and on a shared CPU."""
PROFILED = 16
"""Pairs that give the profile its standard deviation of a pair, at most."""
PROCESSES = 5
"""Processes of a simulated noise profile, as `specgate machine calibrate` measures by default."""


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
            error: float, look: int = number, own: Floats = own, leaning: Floats = leaning, freedom: int = model.freedom
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


def cut_short() -> dict[str, Simulated]:
    """Points whose time is spent within a pass over their prompt sets."""
    made = {}
    for sets, end in ((3, 7), (8, 13)):
        looks = planned_interim_looks(scheduled(sets, Schedule(4, 1, until="decided")))
        plan = scheduled(sets, Schedule(4, 1))
        made[f"{sets} sets, cut after {end} pairs"] = Simulated(plan, (*(n for n in looks if n < end), end))
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
    plans = {**{name: planned(s) for name, s in schedules().items()}, **until_decided(), **cut_short()}
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

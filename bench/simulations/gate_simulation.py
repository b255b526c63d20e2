"""Error rate and power of speed verdicts, on simulated pairs at the shipped schedules.

    python -m bench.simulations.gate_simulation --runs 20000

Every shipped schedule (prompt sets × rounds) meets every kind of noise of NOISES, with the true ratio exactly at the
floor: there, PASS and FAIL are both wrong. The same at 1 and 3 % from the floor gives the power. Prompt sets differ by
5 % (standard deviation). The orders of the roles are those of real plans, drawn anew for every few hundred runs.
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

from bench.simulations.error_rates import bound
from specgate.analysis.intervals.autocorrelation import CONTRADICTED, model_of
from specgate.analysis.intervals.between_runs import ASSUMED, LEAST
from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS, spent
from specgate.analysis.stats import FIRST_LOOK, planned_interim_looks
from specgate.contract import BASELINE, PASS_ROUNDS, Scenario, Schedule
from specgate.planning.plan import build_plan
from specgate.planning.scenario import find, shipped

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Draw = np.random.Generator

PROMPT_SPREAD = 0.05
PLANS = 40
"""Drawn orders of the roles per figure."""
DRIFT = "spec 1 % slower by the end"
"""Not simulated for a run that is continued: it has no one true ratio, since each look would find another."""
SIZES = (0.0004, 0.006, 0.05)
"""Noise of a block: as in micro runs on an H200, in full runs there, and on a shared CPU."""
PROCESSES = 5
"""Processes of a simulated noise profile, as `specgate machine calibrate` measures by default."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Order of a plan: per pair, its prompt set and whether the baseline runs first (+1) or second (−1)."""

    prompt_sets: tuple[int, ...]
    orders: tuple[int, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> Turns:
        """The turns of a scenario's first point."""
        plan = build_plan([scenario], "simulated")
        rounds = [r for r in plan.rounds_of(plan.points[0]) if not r.warmup]
        return cls(tuple(r.prompt_set for r in rounds), tuple(1 if r.order[0] == BASELINE else -1 for r in rounds))


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each kind gives what is added to the true log-ratio of every pair, float64 [runs, pairs]. Over a plan its expectation
# is 0. `sd` is the noise of a block.


def independent(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    return noise.normal(0.0, sd * math.sqrt(2), (runs, len(turns.orders)))


def heavy_tailed(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """Student's t with 3 degrees of freedom, whose variance is 3."""
    return noise.standard_t(3, (runs, len(turns.orders))) * (sd * math.sqrt(2 / 3))


def autoregressive(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The ratio itself is AR(1) with 0.9."""
    values = independent(runs, turns, sd, noise)
    for i in range(1, values.shape[1]):
        values[:, i] = 0.9 * values[:, i - 1] + math.sqrt(1 - 0.81) * values[:, i]
    return values


def spread_by_prompt(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The standard deviation differs by prompt set: log-normal, a factor of e either way."""
    factors = np.exp(noise.normal(0.0, 1.0, (runs, max(turns.prompt_sets) + 1)))
    factors /= np.sqrt((factors**2).mean(axis=1, keepdims=True))
    return independent(runs, turns, sd, noise) * factors[:, turns.prompt_sets]


def drifting_role(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The candidate is 1 % slower by the end."""
    when = np.linspace(-0.5, 0.5, len(turns.orders))
    return independent(runs, turns, sd, noise) - 0.01 * when


def slow_blocks(runs: int, turns: Turns, sd: float, noise: Draw, slow: Floats, base: float, spec: float) -> Floats:
    """The log-ratio of blocks that are slower by `base` or `spec` where `slow` [runs, blocks] is 1."""
    blocks = noise.normal(0.0, sd, (runs, 2 * len(turns.orders)))
    forward = np.asarray(turns.orders) > 0
    first, second = blocks[:, 0::2], blocks[:, 1::2]
    first = first - slow[:, 0::2] * np.where(forward, base, spec)
    second = second - slow[:, 1::2] * np.where(forward, spec, base)
    differences: Floats = np.where(forward, second - first, first - second)
    return differences


def clock_state(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """A clock that is low half of the time, for 16 blocks on average: it costs spec 3.0 and the baseline 2.4 %."""
    count = 2 * len(turns.orders)
    turned = np.cumsum(noise.random((runs, count)) < 1 / 16, axis=1)
    low = ((turned + (noise.random((runs, 1)) < 0.5)) % 2).astype(float)
    return slow_blocks(runs, turns, sd, noise, low, 0.024, 0.030) + 0.5 * 0.006


def every(period: int, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """Every `period`th block is 5 % slow, from a random one on."""
    places = np.arange(2 * len(turns.orders)) + noise.integers(0, period, (runs, 1))
    return slow_blocks(runs, turns, sd, noise, (places % period == 0).astype(float), 0.05, 0.05)


def stalls(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """One block in 13 is 3 % slow, as prefill stalls made it."""
    slow = (noise.random((runs, 2 * len(turns.orders))) < 1 / 13).astype(float)
    return slow_blocks(runs, turns, sd, noise, slow, 0.03, 0.03)


def first_slow(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """The first block after a prefill is 1 % slow."""
    slow = np.tile([1.0, 0.0], (runs, len(turns.orders)))
    return slow_blocks(runs, turns, sd, noise, slow, 0.01, 0.01)


def of_process(process_sd: float, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    """Processes differ by `process_sd`."""
    return independent(runs, turns, sd, noise) + noise.normal(0.0, process_sd, (runs, 1))


Noise = Callable[[int, Turns, float, Draw], Floats]

NOISES: Mapping[str, Noise] = {
    "independent": independent,
    "heavy tails (t, 3 degrees)": heavy_tailed,
    "AR(1) 0.9 of the ratio": autoregressive,
    "spread differs by prompt set": spread_by_prompt,
    DRIFT: drifting_role,
    "a clock state, 3.0 and 2.4 %": clock_state,
    "every 8th block slow": partial(every, 8),
    "every 4th block slow": partial(every, 4),
    "1 block in 13 stalls": stalls,
    "first block after a prefill +1 %": first_slow,
    "process sd 0.02 %": partial(of_process, 0.0002),
    "process sd 0.45 %": partial(of_process, 0.0045),
}

# ── the rule ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Between:
    """Spread between processes that each simulated run allows for: a standard deviation per run, its freedom, and the
    least that is allowed for beside it.
    """

    sd: Floats
    freedom: float
    least: float = 0.0

    @classmethod
    def assumed(cls, runs: int) -> Between:
        """Without a noise profile."""
        return cls(np.full(runs, ASSUMED.process_sd), math.inf)

    @classmethod
    def measured(cls, kind: str, runs: int, turns: Turns, sd: float, noise: Draw) -> Between:
        """With a profile of PROCESSES processes under the same noise, as `specgate machine calibrate` measures it."""
        pairs = PASS_ROUNDS * (max(turns.prompt_sets) + 1)
        once = Turns(turns.prompt_sets[:pairs], turns.orders[:pairs])
        means = NOISES[kind](runs * PROCESSES, once, sd, noise).mean(axis=1)
        return cls(means.reshape(runs, PROCESSES).std(axis=1, ddof=1), PROCESSES - 1, LEAST)

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


def sequential(
    d: Floats,
    turns: Turns,
    looks: Sequence[int],
    between: Between,
    floor: float | Floats = 0.0,
    fail: float = FALSE_FAIL,
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
        model = model_of(turns.orders[:here], turns.prompt_sets[:here], tuple(range(here)))
        around = so_far - so_far.mean(axis=1, keepdims=True)
        squares = np.stack([((around @ w.residual) * around).sum(axis=1) for w in model.weighings], axis=1)
        fits = model.freedom * np.log(np.maximum(squares, 1e-300)) + [w.constant for w in model.weighings]
        plausible = fits <= fits.min(axis=1, keepdims=True) + CONTRADICTED
        variances = np.maximum(squares, 0) / model.freedom * [w.variance for w in model.weighings]
        error = np.sqrt(np.where(plausible, variances, 0.0).max(axis=1))
        mean = so_far @ model.weights

        def reach(share: float, error: Floats = error, freedom: int = model.freedom) -> Floats:
            own = special.stdtrit(freedom, 1 - share) * error
            return np.hypot(own, between.half_width(share))

        still = ~(above | below)
        above |= still & (mean - reach(spent(FALSE_PASS, number)) >= floor)
        below |= still & (mean + reach(spent(fail, number)) < floor)
        pairs[still & (above | below)] = look
    return Outcome(above, below, pairs)


def simulate(
    scenario: Scenario,
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
    outcomes = []
    for part in np.array_split(np.arange(runs), min(PLANS, runs)):
        seed = int(noise.integers(1 << 32))
        turns = Turns.of(replace(scenario, workload=replace(scenario.workload, seed=seed)))
        of_prompt = noise.normal(0.0, PROMPT_SPREAD, (len(part), scenario.workload.prompt_sets))
        of_prompt -= of_prompt.mean(axis=1, keepdims=True)
        d = effect + NOISES[kind](len(part), turns, sd, noise) + of_prompt[:, turns.prompt_sets]
        count = len(part)
        between = Between.measured(kind, count, turns, sd, noise) if profile else Between.assumed(count)
        between = between if blind is None else blind
        outcomes.append(sequential(d, turns, planned_interim_looks(scenario), between, fail=fail))
    columns = zip(*((o.above, o.below, o.pairs) for o in outcomes), strict=True)
    above, below, pairs = (np.concatenate(column) for column in columns)
    return Outcome(above, below, pairs)


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def schedules() -> dict[str, Scenario]:
    """`sets × rounds` → a scenario, for every shipped schedule; and one that was continued with more rounds."""
    template = replace(find("cpu-1k-single"), grid=replace(find("cpu-1k-single").grid, context=(64,)))
    shapes = sorted({(s.workload.prompt_sets, s.schedule.rounds) for s in shipped()})
    plans = {f"{sets} × {rounds}": scheduled(template, sets, Schedule(rounds, 1)) for sets, rounds in shapes}
    return plans | {"8 × 4, continued to 8": scheduled(template, 8, Schedule(8, 1, extended=(4,)))}


def scheduled(template: Scenario, sets: int, schedule: Schedule) -> Scenario:
    return replace(template, workload=replace(template.workload, prompt_sets=sets), schedule=schedule)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def at_the_floor(runs: int, noise: Draw, *, profile: bool) -> Iterator[str]:
    """Lines of a Markdown table: false PASS / false FAIL in percent, per kind of noise and schedule; each the largest
    over block noises of SIZES.
    """
    plans = schedules()
    yield f"| noise | {' | '.join(plans)} |"
    yield f"|---{'|---' * len(plans)}|"
    for kind in NOISES:
        outcomes = [
            rates([simulate(s, kind, runs, sd, noise, profile=profile) for sd in SIZES])
            if kind != DRIFT or not s.schedule.extended
            else "–"
            for s in plans.values()
        ]
        yield f"| {kind} | {' | '.join(outcomes)} |"


def rates(outcomes: Sequence[Outcome]) -> str:
    above, below = (
        100 * max(float(flags.mean()) for flags in side)
        for side in zip(*((o.above, o.below) for o in outcomes), strict=True)
    )
    return "0 / 0" if above == below == 0 else f"{above:.2f} / {below:.2f}"


def unseen(runs: int, noise: Draw) -> Iterator[str]:
    """Lines of a Markdown table: the same at the block noise of H200 micro runs, with a profile whose processes did
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
    yield f"| block sd, off the floor | {' | '.join(plans)} |"
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


def family(runs: int, noise: Draw) -> Iterator[str]:
    """Lines on runs of 34 required spec cells (of 44 cells), 8 × 2 pairs each, block noise 0.6 %, no profile."""
    scenario, cells = schedules()["8 × 2"], 34

    def failed(effect: float, share: float, count: int, kind: str) -> Flags:
        out = simulate(scenario, kind, runs * count, 0.006, noise, effect=effect, fail=share)
        return out.below.reshape(runs, count)

    for kind in ("independent", "AR(1) 0.9 of the ratio", "process sd 0.45 %"):
        for percent in (3, 0):
            wrong: Flags = np.any(failed(math.log1p(percent / 100), FALSE_FAIL / cells, cells, kind), axis=1)
            share, low, high = bound(wrong)
            where = f"{percent} % above every floor" if percent else "exactly at every floor"
            yield f"| {kind} | {where} | {share:.3%} | {low:.3%} … {high:.3%} |"


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
    click.echo(f"\n34 required cells of a 44-cell run: at least one false FAIL, of {runs // 4} runs\n")
    for line in family(runs // 4, noise):
        click.echo(line)


if __name__ == "__main__":
    main()

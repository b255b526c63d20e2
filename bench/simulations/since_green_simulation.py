"""Error rate and power of the gate `since-green` for step times, on simulated pairs of runs.

    python -m bench.simulations.since_green_simulation --runs 20000

Two runs of one role at the schedules of the scenarios that the GPU policies require, with the margin that these
policies have. The runs are two processes, each with noise of its own. Prompts cancel, since rounds are paired. The
first run ends where its times scatter so little that more rounds would hardly help the later one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import click
import numpy as np
from numpy.typing import NDArray

from bench.simulations.gate_simulation import Between, Flags, Outcome, scheduled, sequential
from bench.simulations.noises import Draw, Floats, Noise, Turns, autoregressive, heavy_tailed, independent, of_process
from specgate.analysis.intervals.autocorrelation import model_of
from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.analysis.intervals.decision import false_fail
from specgate.analysis.references import CLOCKS_APART, QUIET, ROUNDS
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import Scenario, Schedule

judged = partial(sequential, alone=True)
MARGIN_PCT = 3.0
ANCHOR_MARGIN_PCT = 5.0
DECISIONS = 22
"""Required decisions of a full run under `planted-8b`: two speeds; eight times and two acceptance lengths, against the
last green run and against the anchor each.
"""
SHAPES = ("4 × 8", "8 × 4")
SIZES = (0.001, 0.002, 0.006)
"""Noise of a block: usual and at most in the stored micro runs on H200s, and of whole requests in full runs there."""
USUAL = 0.002
"""Standard deviation between processes that A/A runs on H200s had at most, once the order of starting is the same."""
FAR = 0.0045
"""The largest that was ever seen on them."""

WIDE = 0.005
"""Standard deviation between processes on a machine whose noise profile has measured it."""


def scenario_of(shape: str) -> Scenario:
    """A scenario of `sets × rounds`, one point."""
    sets, rounds = (int(part) for part in shape.split(" × "))
    return scheduled(sets, Schedule(rounds, 1))


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each kind gives ln(time) of the blocks of one role in one process, less what they have in common: float64 [runs,
# rounds]. A round has two blocks, and the role is the first or the second of them.


def slow(runs: int, turns: Turns, sd: float, noise: Draw, places: Floats, by: float) -> Floats:
    """`places`: 1 where one of all blocks [runs, 2 · rounds] is slower by the share `by`, which is 0 on average."""
    mine = 2 * np.arange(len(turns.orders)) + (np.asarray(turns.orders) < 0)
    values: Floats = independent(runs, turns, sd, noise) + by * (places[:, mine] - places.mean())
    return values


def every(period: int, runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    places = np.arange(2 * len(turns.orders)) + noise.integers(0, period, (runs, 1))
    return slow(runs, turns, sd, noise, (places % period == 0).astype(float), 0.05)


def stalls(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    places = (noise.random((runs, 2 * len(turns.orders))) < 1 / 13).astype(float)
    return slow(runs, turns, sd, noise, places, 0.03)


def clock_state(runs: int, turns: Turns, sd: float, noise: Draw) -> Floats:
    count = 2 * len(turns.orders)
    turned = np.cumsum(noise.random((runs, count)) < 1 / 16, axis=1)
    low = ((turned + (noise.random((runs, 1)) < 0.5)) % 2).astype(float)
    return slow(runs, turns, sd, noise, low, 0.024)


def clock_step(step: float, runs: int, turns: Turns, sd: float, noise: Draw) -> tuple[Floats, Floats]:
    """A clock that steps once, up or down, at any place of a run: times and what they owe to the clock, both [runs,
    rounds]. Both states are equally frequent over many runs.
    """
    mine = 2 * np.arange(len(turns.orders)) + (np.asarray(turns.orders) < 0)
    places = noise.integers(1, 2 * len(turns.orders), (runs, 1))
    state = (mine[None, :] >= places) - 0.5
    slowed: Floats = step * state * noise.choice((-1.0, 1.0), (runs, 1))
    return independent(runs, turns, sd, noise) + slowed, slowed


NOISES: Mapping[str, Noise] = {
    "independent": independent,
    "heavy tails (t, 3 degrees)": heavy_tailed,
    "AR(1) 0.9 of the times": partial(autoregressive, 0.9, 1.0),
    "every 8th block 5 % slow": partial(every, 8),
    "every 4th block 5 % slow": partial(every, 4),
    "1 block in 13 stalls by 3 %": stalls,
    "a clock state that costs 2.4 %, 16 blocks on average": clock_state,
    "process sd 0.2 %": partial(of_process, USUAL),
    "process sd 0.45 %": partial(of_process, FAR),
    "process sd 0.6 %": partial(of_process, 0.006),
}
SIMULATED: Mapping[str, Noise] = {**NOISES, "process sd 0.5 %": partial(of_process, WIDE)}

READINGS = (0.0075, 0.02)
"""Standard deviations of the mean of a block's readings of the clock: of an 8B target on an H200 at its power cap, and
of vLLM's full runs there.
"""

WIDER = "process sd 0.5 %"


@dataclass(frozen=True, slots=True)
class Texts:
    """What changed texts do to the acceptance of a server: a `share` of the prompts moves by `sd` (log scale), and
    `together` of them decode as a batch.
    """

    share: float
    sd: float
    together: int = 1

    def moved(self, runs: int, turns: Turns, noise: Draw) -> Floats:
        """By how much each round's acceptance length moves, which every round of a prompt set repeats."""
        prompts = (runs, max(turns.prompt_sets) + 1, self.together)
        moves = noise.normal(0.0, self.sd, prompts) * (noise.random(prompts) < self.share)
        by_round: Floats = moves.mean(axis=2)[:, np.asarray(turns.prompt_sets)]
        return by_round


TEXTS: Mapping[str, Texts] = {
    "half of the sets by 1.3 %": Texts(0.5, 0.013),
    "half of the prompts by 6 %, four to a set": Texts(0.5, 0.06, 4),
    "half of the prompts by 6 %": Texts(0.5, 0.06),
    "all prompts by 6 %": Texts(1.0, 0.06),
}
PER_TOKEN, PER_ARRIVAL = -1.0, 0.015
"""What a time moves by where acceptance does, as a share of that. Per arrival: the largest slope over the prompt sets
of stored runs of vLLM and SGLang on H200 (0.004 to 0.014). One with a single block per set has 0.04 ± 0.03.
"""


def simulate(
    shape: str,
    kind: str,
    runs: int,
    sd: float,
    noise: Draw,
    loss: float,
    processes: int | None = None,
    texts: Texts | None = None,
    follows: float = PER_ARRIVAL,
) -> Outcome:
    """`runs` pairs of runs, the later of which takes `loss` (log scale) more time per step.

    `texts`: those of the later run that have changed; `follows`: the share of what their acceptance moves by that times
    follow.
    `processes`: how many a noise profile has measured, with a standard deviation of WIDE between them; None for what
    is assumed.
    """
    scenario, outcomes = scenario_of(shape), []
    for part in np.array_split(np.arange(runs), 20):
        seed = int(noise.integers(1 << 32))
        turns = Turns.of(replace(scenario, workload=replace(scenario.workload, seed=seed)))
        count, same = len(part), Turns((0,) * len(turns.orders), (0,) * len(turns.orders))
        old, new = (SIMULATED[kind](count, turns, sd, noise) for _ in range(2))
        if texts is not None:
            new = new + follows * texts.moved(count, turns, noise)
        alone, freedom = (WIDE, processes - 1) if processes else (OF_TIME.process_sd, math.inf)
        between = Between(np.full(count, alone * math.sqrt(2)), freedom)
        floor, fail = -math.log1p(MARGIN_PCT / 100), false_fail(True, DECISIONS)
        looks, rounds = (
            planned_interim_looks(scenario),
            rounds_of_first(old, turns, planned_interim_looks(scenario), between),
        )
        for length in np.unique(rounds):
            mine = rounds == length
            some = Between(between.sd[mine], between.freedom)
            outcomes.append(judged((old - new - loss)[mine, :length], same, looks, some, floor, fail))
    return Outcome.of_all(outcomes)


def stepping(
    shape: str, step: float, runs: int, noise: Draw, loss: float, part: float | None, reading: float = READINGS[0]
) -> Outcome:
    """As `simulate`, where either run's clock steps once and changes the times by `step`; processes differ by USUAL.

    `part`: how much of the clock's change is in the times: 1 if they are in proportion. None where no watch sees it.
    `reading`: see READINGS.
    """
    scenario, outcomes = scenario_of(shape), []
    looks = planned_interim_looks(scenario)
    floor, fail = -math.log1p(MARGIN_PCT / 100), false_fail(True, DECISIONS)
    for some in np.array_split(np.arange(runs), 20):
        seed, count = int(noise.integers(1 << 32)), len(some)
        turns = Turns.of(replace(scenario, workload=replace(scenario.workload, seed=seed)))
        same, between = Turns((0,) * looks[-1], (0,) * looks[-1]), Between(np.full(count, OF_TIME.process_sd), math.inf)
        between = Between(between.sd * math.sqrt(2), math.inf)
        (old, was), (new, now) = (clock_step(step, count, turns, SIZES[0], noise) for _ in range(2))
        d = old - new - loss + noise.normal(0.0, USUAL * math.sqrt(2), (count, 1))
        out = judged(d, same, looks, between, floor, fail)
        for end in np.unique(out.pairs):
            if part is None:
                break
            at = out.pairs == end
            clocks = [noise.normal(0.0, reading, (at.sum(), end)) - of[at, :end] / part for of in (was, now)]
            change = clocks[1].mean(axis=1) - clocks[0].mean(axis=1)
            floors = floor + np.where(np.abs(change) > CLOCKS_APART, change, 0.0)
            equal = judged(d[at, :end], same, (end,), Between(between.sd[at], math.inf), floors, fail)
            out.above[at] &= equal.above
            out.below[at] &= equal.below
        outcomes.append(out)
    return Outcome.of_all(outcomes)


def rounds_of_first(old: Floats, turns: Turns, looks: Sequence[int], between: Between) -> NDArray[np.int64]:
    """After how many rounds every first run ends (`references.since.long_enough`): int64 [runs]."""
    rounds = np.full(len(old), looks[-1])
    for look in [look for look in reversed(looks[:-1]) if look >= ROUNDS]:
        model = model_of(turns.orders[:look], turns.prompt_sets[:look], tuple(range(look)))
        sd = np.sqrt(model.squares(old[:, :look])[:, 0] / model.freedom)  # of independent rounds
        rounds[sd <= between.sd / math.sqrt(2) / QUIET] = look
    return rounds


# ── many builds, one after the other ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Builds:
    """For each build of each history, in order: did its run PASS, and did it FAIL? Bool [histories, builds]."""

    green: Flags
    red: Flags


def histories(
    shape: str,
    process_sd: float,
    runs: int,
    sd: float,
    noise: Draw,
    loss: float,
    builds: int,
    *,
    anchored: bool = True,
    luckiest: bool = False,
) -> Builds:
    """`runs` histories of one role. Every build takes `loss` (log scale) more time per step than the one before.

    Each build is measured in a process of its own, and held against the last green one and, where `anchored`, the best
    one (`references.anchors_after`). `luckiest`: the best one is any that took less time, proven or not.
    """
    looks, rounds = planned_interim_looks(scenario_of(shape)), planned_interim_looks(scenario_of(shape))[-1]
    same, between = (
        Turns((0,) * rounds, (0,) * rounds),
        Between(np.full(runs, OF_TIME.process_sd * math.sqrt(2)), math.inf),
    )
    last = best = of_process(process_sd, runs, same, sd, noise)
    green, red = np.zeros((runs, builds), bool), np.zeros((runs, builds), bool)
    for build in range(builds):
        new = of_process(process_sd, runs, same, sd, noise) + loss * (build + 1)
        margins = ((last, MARGIN_PCT), (best, ANCHOR_MARGIN_PCT)) if anchored else ((last, MARGIN_PCT),)
        outcomes = [
            judged(old - new, same, looks, between, -math.log1p(margin / 100), false_fail(True, DECISIONS))
            for old, margin in margins
        ]
        green[:, build] = np.logical_and.reduce([o.above for o in outcomes])
        red[:, build] = np.logical_or.reduce([o.below for o in outcomes])
        d = best - new
        gained = d.mean(axis=1) > 0 if luckiest else judged(d, same, (rounds,), between).above
        last = np.where(green[:, build, None], new, last)
        best = np.where((green[:, build] & gained)[:, None], new, best)
    return Builds(green, red)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def at_the_margin(runs: int, noise: Draw) -> Iterator[str]:
    """False PASS / false FAIL in percent where the loss is exactly the margin; each the larger of both block noises."""
    yield f"| noise | {' | '.join(SHAPES)} |"
    yield f"|---{'|---' * len(SHAPES)}|"
    for kind in NOISES:
        cells = []
        for shape in SHAPES:
            outcomes = [simulate(shape, kind, runs, sd, noise, math.log1p(MARGIN_PCT / 100)) for sd in SIZES]
            cells.append(" / ".join(f"{share:.2f}" for share in Outcome.worst(outcomes)))
        yield f"| {kind} | {' | '.join(cells)} |"


def clock_steps(runs: int, noise: Draw) -> Iterator[str]:
    """A clock that steps once in either run: PASS / FAIL in percent, unchanged and with a loss of the margin."""
    yield f"| the clock's step changes times by | seen | {' | '.join(f'{s}, same | 3 % slower' for s in SHAPES)} |"
    yield f"|---|---{'|---|---' * len(SHAPES)}|"
    sides = {"no": (None, 0.0)} | {f"yes, readings ± {100 * sd:g} %": (1.0, sd) for sd in READINGS}
    for step in (0.0, 0.01, 0.024):
        for seen, (part, reading) in (sides | {"yes, half of it in the times": (0.5, READINGS[0])}).items():
            outcomes = [
                stepping(shape, step, runs, noise, math.log1p(percent / 100), part, reading)
                for shape in SHAPES
                for percent in (0.0, MARGIN_PCT)
            ]
            cells = [f"{100 * o.above.mean():.2f} / {100 * o.below.mean():.2f}" for o in outcomes]
            yield f"| {100 * step:g} % | {seen} | {' | '.join(cells)} |"


def power(runs: int, noise: Draw) -> Iterator[str]:
    """PASS / FAIL in percent, by how much slower the later run is. Without a profile, processes differ by USUAL; with
    one, by WIDE.
    """
    columns: list[tuple[str, float, int | None]] = [(shape, sd, None) for shape in SHAPES for sd in SIZES]
    columns += [("8 × 4", SIZES[0], processes) for processes in (5, 20)]
    heads = [f"{s}, {100 * sd:g} %" + (f", profile of {n} processes" if n else "") for s, sd, n in columns]
    yield f"| slower by | {' | '.join(heads)} |"
    yield f"|---{'|---' * len(columns)}|"
    for percent in (0, 1, 2, 3, 4, 5, 6, 8, 10, 40):
        cells = []
        for shape, sd, processes in columns:
            kind = WIDER if processes else "process sd 0.2 %"
            out = simulate(shape, kind, runs, sd, noise, math.log1p(percent / 100), processes)
            cells.append(f"{100 * out.above.mean():.1f} / {100 * out.below.mean():.1f}")
        yield f"| {percent} % | {' | '.join(cells)} |"


def changed_texts(runs: int, noise: Draw) -> Iterator[str]:
    """A server whose texts change, processes USUAL apart: PASS / FAIL in percent by how its steps are timed."""
    heads = [f"{shape}, {loss} %" for shape in SHAPES for loss in (0, 3, 8)]
    yield f"| texts that change | time per | {' | '.join(heads)} |"
    yield f"|---|---{'|---' * len(heads)}|"
    for name, texts in TEXTS.items():
        for words, follows in (("token", PER_TOKEN), ("arrival", PER_ARRIVAL)):
            cells = []
            for shape in SHAPES:
                for percent in (0, 3, 8):
                    loss = math.log1p(percent / 100)
                    out = simulate(shape, "process sd 0.2 %", runs, SIZES[0], noise, loss, None, texts, follows)
                    cells.append(f"{100 * out.above.mean():.2f} / {100 * out.below.mean():.2f}")
            yield f"| {name} | {words} | {' | '.join(cells)} |"


def creeping(runs: int, noise: Draw) -> Iterator[str]:
    """Histories of builds that do not change, and of builds that lose 0.5 % each: PASS / FAIL by build, in percent."""
    yield "| process sd, each build loses | held against | build 5 | 10 | 15 | 20 | 100 |"
    yield "|---|---|---|---|---|---|---|"
    sides: Mapping[str, Mapping[str, bool]] = {
        "last green": {"anchored": False},
        "and the best": {},
        "and the luckiest": {"luckiest": True},
    }
    for process_sd in (USUAL, FAR, 0.006):
        for loss in (0.0, 0.5):
            for side, options in sides.items():
                builds = 20 if loss else 100
                out = histories("4 × 8", process_sd, runs, SIZES[0], noise, math.log1p(loss / 100), builds, **options)
                at = [n for n in (5, 10, 15, 20, 100) if n <= builds]
                cells = [f"{100 * out.green[:, n - 1].mean():.1f} / {100 * out.red[:, n - 1].mean():.2f}" for n in at]
                yield f"| {100 * process_sd:g} %, {loss:g} % | {side} | {' | '.join(cells)} |"


@click.command()
@click.option("--runs", default=20_000, show_default=True, type=click.IntRange(100))
@click.option("--seed", default=1, show_default=True)
def main(runs: int, seed: int) -> None:
    """Print error rates and power as Markdown tables."""
    noise = np.random.default_rng(seed)
    click.echo(f"\nA loss of exactly {MARGIN_PCT:g} %: false PASS / false FAIL, % of {runs} pairs of runs\n")
    for line in at_the_margin(runs, noise):
        click.echo(line)
    click.echo(f"\nA clock step: PASS / FAIL, % of {runs} pairs of runs\n")
    for line in clock_steps(runs, noise):
        click.echo(line)
    click.echo(f"\nA server's texts change: PASS / FAIL, % of {runs // 2} pairs of runs, by the loss\n")
    for line in changed_texts(runs // 2, noise):
        click.echo(line)
    click.echo(f"\nBuilds one after the other: PASS / FAIL, % of {runs // 10} histories\n")
    for line in creeping(runs // 10, noise):
        click.echo(line)
    click.echo(f"\nPASS / FAIL, % of {runs // 4} pairs of runs, by schedule and block noise\n")
    for line in power(runs // 4, noise):
        click.echo(line)


if __name__ == "__main__":
    main()

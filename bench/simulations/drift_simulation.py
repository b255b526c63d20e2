"""Error rate and power of the gate `acceptance-drift`, on simulated runs.

    python -m bench.simulations.drift_simulation --runs 4000

What is simulated is the acceptance length of every block, as an engine would show it whose texts do not repeat exactly.
(Where they do, there is no noise, and nothing to be wrong about.) The slope is held against its true value: with no
fall at all and a bound of 0, or with a fall of exactly the bound, a verdict is wrong with the same chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import click
import numpy as np
from numpy.typing import NDArray

from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS
from specgate.analysis.intervals.slope import reach, slope_of

Draw = np.random.Generator
Floats = NDArray[np.float64]
SHAPES = ((4, 8), (8, 4), (8, 2), (12, 2), (8, 16))
"""Prompt sets and rounds, as the shipped scenarios have them; the last one is a long load run."""
LENGTH = 3.0
SD = 0.1
"""Of a block, in tokens: that of the sampling error of some 100 steps that accept 0 to 3 drafts."""
FALLS = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Percent over the whole run."""

# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each kind gives what the blocks of one run accept beside the mean of their prompt set: float64 [rounds · sets], in
# running order, one round on every set after the other.


def independent(sets: int, rounds: int, noise: Draw) -> Floats:
    return noise.normal(0.0, SD, sets * rounds)


def heavy_tailed(sets: int, rounds: int, noise: Draw) -> Floats:
    values: Floats = noise.standard_t(3, sets * rounds) * (SD / math.sqrt(3))
    return values


def autoregressive(rho: float, sets: int, rounds: int, noise: Draw) -> Floats:
    values = independent(sets, rounds, noise)
    for i in range(1, len(values)):
        values[i] = rho * values[i - 1] + math.sqrt(1 - rho * rho) * values[i]
    return values


def one_in_ten(sets: int, rounds: int, noise: Draw) -> Floats:
    """Most texts repeat; one block in ten parts from its prompt set's text, and accepts something else."""
    count = sets * rounds
    return independent(sets, rounds, noise) * (noise.random(count) < 0.1) * 3


def parts_for_good(sets: int, rounds: int, noise: Draw) -> Floats:
    """Three prompt sets of ten have another text from some round on, as when an engine picks another kernel."""
    values = np.zeros((rounds, sets))
    for one in range(sets):
        if noise.random() < 0.3:
            values[noise.integers(1, rounds) :, one] = noise.normal(0.0, 3 * SD)
    return values.ravel()


def spread_by_set(sets: int, rounds: int, noise: Draw) -> Floats:
    values: Floats = independent(sets, rounds, noise) * np.tile(np.linspace(0.2, 2.0, sets), rounds)
    return values


Noise = Callable[[int, int, Draw], Floats]
NOISES: Mapping[str, Noise] = {
    "independent": independent,
    "heavy tails (t, 3 degrees)": heavy_tailed,
    "AR(1) 0.5": partial(autoregressive, 0.5),
    "AR(1) 0.9": partial(autoregressive, 0.9),
    "spread differs by prompt set": spread_by_set,
    "one block in ten parts": one_in_ten,
    "some texts part for good": parts_for_good,
}


def outcomes(shape: tuple[int, int], make: Noise, runs: int, noise: Draw, fall_pct: float = 0.0) -> tuple[float, float]:
    """(share of runs that are told to fall, share that are told not to) with a fall of `fall_pct` % over the run."""
    sets, rounds = shape
    count = sets * rounds
    prompt_sets, xs = [i % sets for i in range(count)], [(i + 0.5) / count for i in range(count)]
    means = np.tile(noise.normal(0.0, 0.3, sets), rounds)
    falls = keeps = 0
    for _ in range(runs):
        lengths = LENGTH + means + make(sets, rounds, noise) - LENGTH * fall_pct / 100 * np.asarray(xs)
        slope = slope_of([float(x) for x in lengths], xs, prompt_sets)
        assert slope is not None
        spread = slope.error, slope.freedom, slope.set_error, slope.sets
        falls += slope.slope + reach(*spread, FALSE_FAIL) < 0
        keeps += slope.slope - reach(*spread, FALSE_PASS) > 0
    return 100 * falls / runs, 100 * keeps / runs


@click.command()
@click.option("--runs", default=4000, show_default=True)
@click.option("--seed", default=23, show_default=True)
def main(runs: int, seed: int) -> None:
    """Print two tables: error rates, and which fall is seen."""
    noise = np.random.default_rng(seed)
    head = " | ".join(f"{sets} × {rounds}" for sets, rounds in SHAPES)
    print(f"| noise | {head} |\n|{'---|' * (len(SHAPES) + 1)}")
    for name, make in NOISES.items():
        rates = [outcomes(shape, make, runs, noise) for shape in SHAPES]
        print(f"| {name} | {' | '.join(f'{falls:.2f} / {keeps:.2f}' for falls, keeps in rates)} |", flush=True)
    print(f"\n| falls over the run by | {head} |\n|{'---|' * (len(SHAPES) + 1)}")
    for fall in FALLS:
        falls_seen = [outcomes(shape, independent, max(runs // 4, 1), noise, fall)[0] for shape in SHAPES]
        print(f"| {fall:g} % | {' | '.join(f'{share:.1f}' for share in falls_seen)} |", flush=True)


if __name__ == "__main__":
    main()

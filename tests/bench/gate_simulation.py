"""How often the decision rule is wrong, and how soon it decides, on simulated pairs of blocks.

    python -m tests.bench.gate_simulation --runs 20000

The noise of a block consists of Student's t with 4 degrees of freedom, scaled to the standard deviation asked for; a
random walk of 0.15 % per block; 1 % of settling with a time constant of 6 blocks; and a cost of 0.4 % for the second
place in a pair.

Pairs run A B · B A. The interim looks are after 6, 10, 16 and 24 pairs or, where a scenario has several prompt sets, at
the end of each pass over them. Prompt sets differ by 5 % (standard deviation). `tests/analysis/test_stats.py` compares
the vectorised rule used here with `stats.decide`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from specgate.analysis.stats import ALPHA, LOOKS, designs

Floats = NDArray[np.float64]

DRIFT, SETTLING, TIME_CONSTANT, SLOT_COST = 0.0015, 0.01, 6.0, 0.004


@dataclass(frozen=True, slots=True)
class Outcome:
    """For each simulated run: whether it ended above or below the floor, and after how many pairs."""

    above: NDArray[np.bool_]
    below: NDArray[np.bool_]
    pairs: NDArray[np.int64]


def orders(pairs: int) -> list[int]:
    """+1 for pairs in which the baseline runs first, −1 for the others: A B · B A."""
    return [1 if i % 2 == 0 else -1 for i in range(pairs)]


def prompts(sets: int, pairs: int = LOOKS[-1]) -> list[int]:
    """The prompt set of every pair: passes over the sets, with two rounds on each."""
    return [i // 2 % sets for i in range(pairs)]


def log_ratios(
    runs: int, effect: float, sd: float, noise: np.random.Generator, prompt_sets: Sequence[int], spread: float = 0.05
) -> Floats:
    """ln(candidate / baseline) of speed, float64 [runs, pairs].

    `effect` is the candidate's true log-ratio over its prompts, `sd` the noise of a block, and `spread` the standard
    deviation between prompt sets.
    """
    pairs = len(prompt_sets)
    blocks = noise.standard_t(4, (runs, 2 * pairs)) * (sd / math.sqrt(2.0))  # the variance of t(4) is 2
    blocks += np.cumsum(noise.normal(0.0, DRIFT, blocks.shape), axis=1)
    blocks -= SETTLING * np.exp(-np.arange(2 * pairs) / TIME_CONSTANT)
    first, second = blocks[:, 0::2], blocks[:, 1::2] - SLOT_COST
    of_prompt = noise.normal(0.0, spread, (runs, max(prompt_sets) + 1))
    of_prompt -= of_prompt.mean(axis=1, keepdims=True)
    d: Floats = effect + of_prompt[:, prompt_sets] + (second - first) * np.array(orders(pairs))
    return d


def sequential(
    d: Floats, floor: float, prompt_sets: Sequence[int], looks: Sequence[int] = LOOKS, alpha: float = ALPHA
) -> Outcome:
    """`stats.decide` for many runs at once. `floor` is on the log scale; `alpha` is shared by all `looks`."""
    runs = len(d)
    above, below = np.zeros(runs, bool), np.zeros(runs, bool)
    pairs = np.full(runs, looks[-1])
    for n in looks:
        design, _ = next(designs(orders(n), prompt_sets[:n]))
        freedom = n - design.shape[1]
        seen = d[:, :n]
        residual = seen - seen @ np.linalg.pinv(design).T @ design.T
        se = np.sqrt((residual**2).sum(axis=1) / freedom / n)  # passes are balanced
        mean, half = seen.mean(axis=1), scipy_stats.t.ppf(1 - alpha / len(looks), freedom) * se
        still = ~(above | below)
        above |= still & (mean - half >= floor)
        below |= still & (mean + half < floor)
        pairs[still & (above | below)] = n
    return Outcome(above, below, pairs)


def bound(wrong: NDArray[np.bool_], confidence: float = 0.99) -> tuple[float, float, float]:
    """(share of `wrong`, lower and upper end of its exact two-sided Clopper–Pearson interval)."""
    found = scipy_stats.binomtest(int(wrong.sum()), len(wrong)).proportion_ci(confidence)
    return float(wrong.mean()), float(found.low), float(found.high)


@click.command()
@click.option("--runs", default=20_000, show_default=True, type=click.IntRange(100))
@click.option("--sd", default=0.6, show_default=True, help="Noise of a block, percent.")
@click.option("--margin", default=2.0, show_default=True, help="Margin of a regression gate, percent.")
@click.option("--slowdown", default=3.0, show_default=True, help="What a worse build loses, percent.")
@click.option("--seed", default=1, show_default=True)
def main(runs: int, sd: float, margin: float, slowdown: float, seed: int) -> None:
    """Print error rates, power, and the number of pairs that a decision takes."""
    noise = np.random.default_rng(seed)

    def simulate(
        loss: float, floor: float, sets: int = 1, looks: Sequence[int] = LOOKS, alpha: float = ALPHA
    ) -> Outcome:
        """`loss` is the time per token that the candidate loses, `floor` what it may lose, both in percent."""
        d = log_ratios(runs, -math.log1p(loss / 100), sd / 100, noise, prompts(sets))
        return sequential(d, -math.log1p(floor / 100), prompts(sets), looks, alpha)

    def line(what: str, wrong: NDArray[np.bool_], pairs: NDArray[np.int64]) -> None:
        share, low, high = bound(wrong)
        click.echo(f"{what:58} {share:8.3%}  ({low:.3%} … {high:.3%})  {pairs.mean():5.1f}")

    click.echo(f"{runs} runs each, block noise {sd:g} %, looks at {', '.join(map(str, LOOKS))}, alpha {ALPHA:g} a side")
    click.echo(f"{'':58} {'share':>8}  {'99 % interval':^19}  pairs")
    same = simulate(0, 0)
    line("A/A against a floor of 1.0x: false FAIL", same.below, same.pairs)
    line("A/A against a floor of 1.0x: false PASS", same.above, same.pairs)
    within = simulate(0, margin)
    line(f"A/A with a margin of {margin:g} %: false FAIL", within.below, within.pairs)
    line(f"A/A with a margin of {margin:g} %: PASS", within.above, within.pairs)
    at = simulate(margin, margin)
    line(f"{margin:g} % slower with a margin of {margin:g} %: false PASS", at.above, at.pairs)
    worse = simulate(slowdown, margin)
    line(f"{slowdown:g} % slower with a margin of {margin:g} %: FAIL", worse.below, worse.pairs)
    line(f"{slowdown:g} % slower with a margin of {margin:g} %: false PASS", worse.above, worse.pairs)
    slower = simulate(slowdown, 0)
    line(f"{slowdown:g} % slower against a floor of 1.0x: FAIL", slower.below, slower.pairs)
    passes = (8, 16, 24)
    several = simulate(0, 0, 4, passes)
    line("4 prompt sets, A/A against a floor of 1.0x: false FAIL", several.below, several.pairs)
    line("4 prompt sets, A/A against a floor of 1.0x: false PASS", several.above, several.pairs)
    within = simulate(0, margin, 4, passes)
    line(f"4 prompt sets, A/A with a margin of {margin:g} %: PASS", within.above, within.pairs)
    worse = simulate(slowdown, margin, 4, passes)
    line(f"4 prompt sets, {slowdown:g} % slower, margin of {margin:g} %: FAIL", worse.below, worse.pairs)
    peeking = simulate(0, 0, alpha=ALPHA * len(LOOKS))
    line("for comparison, alpha not split: A/A false FAIL", peeking.below, peeking.pairs)


if __name__ == "__main__":
    main()

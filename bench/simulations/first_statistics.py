"""The decision rule of statistics 1, by which older runs were judged, for many simulated runs at once.

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

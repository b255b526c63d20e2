"""Differences of logarithms with their standard errors.

Of a time, the unit of evidence is a pair of processes: one of each build, over the same prompts. Blocks within a
process repeat each other, while two processes of one build differ by more than their blocks do (memory layout, clocks).
So a process pair counts once, however many blocks it has.

Of acceptance, the unit is a prompt: decoding is greedy, so a build gives one text per prompt, and no noise is left.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specgate.analysis.stats import t_quantile

LEAST = 3
"""Process pairs or prompts that an interval needs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """ln(new / old): its mean, the standard deviation of what it is a mean of, and how many those are (`n`)."""

    mean: float
    sd: float
    n: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.n)

    def half_width(self, error: float) -> float:
        """Half the width of the t-interval with an error of `error` on each side."""
        return t_quantile(1 - error, self.n - 1) * self.error

    def chance(self) -> float:
        """The one-sided p-value of this mean, or a larger one, where the true mean is 0 or less."""
        from scipy.special import stdtr

        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return float(stdtr(self.n - 1, -self.mean / self.error))

    def mirrored(self) -> Difference:
        """ln(old / new)."""
        return Difference(-self.mean, self.sd, self.n)


def over_processes(log_ratios: Mapping[int, Sequence[float]]) -> Difference | None:
    """The mean over process pairs of the mean of each. None for fewer than LEAST pairs.

    `log_ratios`: process pair → ln(new / old) of its blocks.
    """
    means = [statistics.fmean(values) for values in log_ratios.values() if values]
    if len(means) < LEAST:
        return None
    return Difference(statistics.fmean(means), statistics.stdev(means), len(means))


Counts = Mapping[tuple[int, int], tuple[float, float]]
"""(prompt set, slot) → (numerator, denominator) of a ratio Σ numerators / Σ denominators."""


def over_prompts(old: Counts, new: Counts) -> Difference | None:
    """ln of the ratio of two ratios Σ numerators / Σ denominators, paired by prompt.

    Linearised: prompt i moves ln r by (nᵢ − r·dᵢ) / Σn, so what it moves in both builds cancels. None for fewer than
    LEAST prompts, and where a side has nothing to count.
    """
    both = [prompt for prompt in old if prompt in new]
    sums = [[sum(column) for column in zip(*(side[p] for p in both), strict=True)] for side in (old, new) if both]
    if len(both) < LEAST or not all(above and below for above, below in sums):
        return None
    ratios = [above / below for above, below in sums]
    moves = [moved(new[p], ratios[1], sums[1][0]) - moved(old[p], ratios[0], sums[0][0]) for p in both]
    n = len(both)
    # The error of the mean is √(n / (n − 1) · Σ moves²); `Difference` divides its sd by √n.
    sd = n * math.sqrt(sum(m * m for m in moves) / (n - 1))
    return Difference(math.log(ratios[1] / ratios[0]), sd, n)


def moved(counts: tuple[float, float], ratio: float, above: float) -> float:
    """How far one prompt moves ln r."""
    return (counts[0] - ratio * counts[1]) / above

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
from dataclasses import dataclass, replace

from specgate.analysis.stats import t_quantile

LEAST = 3
"""Process pairs or prompts that an interval needs."""
LEAST_CHANCE = 1e-12
"""Any p-value below it is this one, where it has to be searched for."""
FITTED_FROM = 3
"""Process pairs in which each side must have been first before the order of starting is fitted. With two, pairs that
happen to be alike leave no noise. Without the fit the order's effect counts as noise: no error becomes likelier.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """ln(new / old) with its standard error.

    `sd`: standard deviation of what it is a mean of, without what the order of starting explains.
    `n`: how many process pairs or prompts those are. `fitted`: how many parameters were fitted, which `n` exceeds by
        the degrees of freedom.
    `assumed`: standard deviation of what all of the `n` have in common, which nobody measured (normal). Two servers
        that somebody else has started are one process each, however many sessions they had.
    """

    mean: float
    sd: float
    n: int
    fitted: int = 1
    assumed: float = 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.n)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of `sd`."""
        return self.n - self.fitted

    def half_width(self, error: float) -> float:
        """Half the width of the t-interval with an error of `error` on each side; with what is assumed, the root of
        both squared, each at its own quantile.
        """
        measured = t_quantile(1 - error, self.freedom) * self.error
        return math.hypot(measured, t_quantile(1 - error, math.inf) * self.assumed) if self.assumed else measured

    def chance(self) -> float:
        """The one-sided p-value of this mean, or a larger one, where the true mean is 0 or less."""
        from scipy.optimize import brentq
        from scipy.special import stdtr

        if self.assumed:
            if self.mean <= 0:
                return 1 - self.mirrored().chance() if self.mean else 0.5
            if self.half_width(LEAST_CHANCE) < self.mean:
                return LEAST_CHANCE
            return float(brentq(lambda p: self.half_width(p) - self.mean, LEAST_CHANCE, 0.5, xtol=1e-15, rtol=1e-9))
        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return float(stdtr(self.freedom, -self.mean / self.error))

    def mirrored(self) -> Difference:
        """ln(old / new)."""
        return replace(self, mean=-self.mean)


def over_processes(
    log_ratios: Mapping[int, Sequence[float]], firsts: Mapping[int, str], assumed: float = 0.0
) -> Difference | None:
    """The mean over process pairs of the mean of each. None for fewer than LEAST pairs.

    `log_ratios`: process pair → ln(new / old) of its blocks. `firsts`: process pair → the side that was started first.
    `assumed`: see `Difference`.

    On some GPUs one place in the order of starting is faster for as long as the process lives: on H200s the first by
    0.3 to 0.5 % with one pair, the second by 0.1 to 0.4 % with another, and neither on a third machine. So the model is
    dᵢ = m + b·oᵢ with the order oᵢ = ±1 of starting, fitted by least squares, where each side was first often enough.
    The sign of b is left open. Each side is first in half of the
    pairs, or in one more, and m is the mean of the two orders' means: the order favours no side even where it is the
    larger effect.
    """
    means = {pair: statistics.fmean(values) for pair, values in log_ratios.items() if values}
    if len(means) < LEAST:
        return None
    groups = [[d for pair, d in means.items() if firsts.get(pair) == side] for side in ("old", "new")]
    if min(map(len, groups)) < FITTED_FROM or sum(map(len, groups)) < len(means):
        sd = statistics.stdev(means.values())
        return Difference(statistics.fmean(means.values()), sd, len(means), assumed=assumed)
    of_each = [statistics.fmean(group) for group in groups]
    squares = sum((d - mean) ** 2 for group, mean in zip(groups, of_each, strict=True) for d in group)
    n = len(means)
    # The error of the mean of two means is s · √(1/n₁ + 1/n₂) / 2; `Difference` divides its sd by √n.
    scale = math.sqrt(n * sum(1 / len(group) for group in groups)) / 2
    sd = math.sqrt(squares / (n - 2)) * scale
    return Difference(statistics.fmean(of_each), sd, n, fitted=2, assumed=assumed)


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
    """Change of ln r that one prompt causes."""
    return (counts[0] - ratio * counts[1]) / above

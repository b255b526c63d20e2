"""A percentile of samples that come in groups, with an interval from order statistics.

Of n independent samples, the number below the true percentile q is binomial with n and q, whatever the distribution is.
So the ranks between which the percentile lies follow from n and q alone (David and Nagaraja, Order Statistics, 2003,
section 7.1). Where the samples are too few for a rank on one side to be certain enough, there is no bound on that side.

Times of one block are alike: one stall of the machine slows many of them. A group (block) is therefore what counts as
independent. n is replaced by an effective number: n over the design effect, which is how much larger the variance of
the share of samples at or below the percentile is between groups than it would be between independent samples, and
scaled down because that variance is itself estimated from few groups (Korn and Graubard, Survey Methodology 24(2),
1998; Woodruff, JASA 47, 1952).

Neighbouring blocks may be alike, too: a slow state of the machine lasts for several. The standard error is therefore
multiplied by the factor that `intervals.autocorrelation` finds for the mean of the blocks, the larger of two: by their
shares of samples below the percentile, and by their mean ranks, which show a state that has not yet reached the tail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.intervals.autocorrelation import fit
from specgate.analysis.stats import t_quantile

Array = NDArray[np.float64]
ERROR: Final = 0.0035
"""The chance, on each side, that the interval leaves the true percentile out. A rule on the tail decides by it."""
MIN_GROUPS: Final = 3
"""Fewer groups than this say nothing about how alike the samples of a group are, unless each has one sample."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a sample. A bound is None where the samples are too few for it.

    `samples`: how many there are.
    """

    value: float
    low: float | None
    high: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Samples in the order in which their blocks ran.

    `samples`: float64 [samples], one block after another. `sizes`: float64 [blocks], how many each has, at least one.
    `rank_factor`: `neighbours_factor` of the blocks' mean ranks.
    """

    samples: Array
    sizes: Array
    rank_factor: float

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]]) -> Blocks | None:
        """Groups without a sample are left out; None where there is no sample."""
        filled = [np.asarray(group, float) for group in groups if group]
        if not filled:
            return None
        samples, sizes = np.concatenate(filled), np.array([len(group) for group in filled], float)
        _, place, times = np.unique(samples, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(times) - (times - 1) / 2)[place]
        return cls(samples, sizes, neighbours_factor(excess(ranks, sizes)))

    def counted(self, chosen: NDArray[np.bool_]) -> Array:
        """Float64 [blocks]: `excess` of the samples that are `chosen`."""
        return excess(chosen.astype(float), self.sizes)

    def factor(self, above: Array) -> float:
        """What blocks that resemble their neighbours do to the standard error of a share. `above`: see `excess`."""
        return max(self.rank_factor, neighbours_factor(above))


def excess(values: Array, sizes: Array) -> Array:
    """Float64 [blocks]: by how much the sum of each block's `values` lies above its size times the mean of all."""
    sums = np.add.reduceat(values, np.concatenate([[0], np.cumsum(sizes[:-1], dtype=int)]))
    above: Array = sums - sums.sum() / sizes.sum() * sizes
    return above


def neighbours_factor(series: Array) -> float:
    """By how much the standard error of the mean of `series` (one value per block, in running order) exceeds that of
    independent blocks; 1 where nothing scatters.
    """
    count = len(series)
    known = fit(series.tolist(), [1] * count, (), range(count))
    return max(1.0, known.error / known.sd * count**0.5) if known is not None and known.sd else 1.0


def quantiles(groups: Sequence[Sequence[float]], shares: Sequence[float], error: float = ERROR) -> Iterator[Quantile]:
    """The quantile of all samples for each of `shares` (between 0 and 1), linearly between the two nearest samples.
    Nothing where there is no sample.

    `groups`: the samples of each block, in running order.
    """
    blocks = Blocks.of(groups)
    if blocks is None:
        return
    ordered, n = np.sort(blocks.samples), len(blocks.samples)
    for q in shares:
        value = float(np.quantile(ordered, q))
        low, high = rank_shares(effective_number(blocks, value, q, error), q, error)
        yield Quantile(
            value,
            None if low is None else float(ordered[int(low * n + 1e-9)]),
            None if high is None else float(ordered[min(n, int(np.ceil(high * n - 1e-9))) - 1]),
            n,
        )


def effective_number(blocks: Blocks, value: float, q: float, error: float) -> int:
    """So many independent samples would say as much about the quantile `q`, estimated as `value`. 0: nothing is known
    of how alike the samples of a block are.
    """
    n, count = float(blocks.sizes.sum()), len(blocks.sizes)
    if n > count < MIN_GROUPS:
        return 0
    # Where many samples have the same value, either side of it may be what sets the blocks apart.
    most, least = blocks.samples <= value, blocks.samples < value
    sides = [blocks.counted(chosen) for chosen in ((most,) if (most == least).all() else (most, least))]
    alike = max(map(blocks.factor, sides)) ** 2
    if n == count:
        return max(int(n / alike), 1)
    between = max(count / (count - 1) * float(above @ above) for above in sides)
    design_effect = max(1.0, between / (n * q * (1 - q))) * alike
    few_groups = (t_quantile(1 - error, n - 1) / t_quantile(1 - error, count - 1)) ** 2
    return max(int(n / design_effect * few_groups), 1)


def rank_shares(n: int, q: float, error: float) -> tuple[float | None, float | None]:
    """The order statistics of `n` independent samples that enclose the quantile `q`, each as a share of `n`.

    The low one is X(l) with l = `share`·n + 1, the high one X(u) with u = `share`·n. None where even the smallest or
    the largest sample may lie on the wrong side with a chance above `error`.
    """
    from scipy.special import bdtr

    def at_most(k: int) -> float:
        """The chance that at most `k` of `n` samples are below the quantile."""
        return float(bdtr(k, n, q)) if k >= 0 else 0.0

    if n < 1:
        return None, None
    # The quantile is below X(l) where at most l − 1 samples are below it; at least X(u) where u or more are.
    low = first(n, lambda k: at_most(k) > error)
    high = first(n, lambda k: at_most(k) >= 1 - error)
    return ((low - 1) / n if low else None), ((high + 1) / n if high < n else None)


def first(n: int, holds: Callable[[int], bool]) -> int:
    """The smallest k in 0…n − 1 for which `holds(k)`, which stays true from there on; `n` where there is none."""
    return bisect_left(range(n), True, key=holds)

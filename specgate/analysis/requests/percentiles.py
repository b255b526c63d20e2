"""A percentile of samples that come in groups, with an interval from order statistics.

Of n independent samples, the number below the true percentile q is binomial with n and q, whatever the distribution is.
So the ranks between which the percentile lies follow from n and q alone (David and Nagaraja, Order Statistics, 2003,
section 7.1). Where the samples are too few for a rank on one side to be certain enough, there is no bound on that side.

Times of one block are alike: one stall of the machine slows many of them. A group (block) is therefore what counts as
independent. n is replaced by an effective number: n over the design effect, which is how much larger the variance of
the share of samples at or below the percentile is between groups than it would be between independent samples, and
scaled down because that variance is itself estimated from few groups (Korn and Graubard, Survey Methodology 24(2),
1998; Woodruff, JASA 47, 1952).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from specgate.analysis.stats import t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def quantiles(groups: Sequence[Sequence[float]], shares: Sequence[float], error: float = ERROR) -> Iterator[Quantile]:
    """The quantile of all samples for each of `shares` (between 0 and 1), linearly between the two nearest samples.
    Nothing where there is no sample.

    `groups`: the samples, as they depend on each other: those of two groups do not.
    """
    import numpy as np

    filled = [group for group in groups if group]
    if not filled:
        return
    samples = np.concatenate([np.asarray(group, float) for group in filled])
    sizes, ordered, n = np.array([len(group) for group in filled], float), np.sort(samples), len(samples)
    for q in shares:
        value = float(np.quantile(ordered, q))
        low, high = rank_shares(effective_number(samples, sizes, value, q, error), q, error)
        yield Quantile(
            value,
            None if low is None else float(ordered[int(low * n + 1e-9)]),
            None if high is None else float(ordered[min(n, int(np.ceil(high * n - 1e-9))) - 1]),
            n,
        )


def effective_number(samples: Array, sizes: Array, value: float, q: float, error: float) -> int:
    """So many independent samples would say as much about the quantile `q`, estimated as `value`. 0: nothing is known
    of how alike the samples of a group are.

    `samples`: those of all groups, one group after another. `sizes`: how many each group has, at least one.
    """
    import numpy as np

    n, count = float(sizes.sum()), len(sizes)
    if n == count:
        return count
    if count < MIN_GROUPS:
        return 0

    starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=int)])

    def between(counted: NDArray[np.bool_]) -> float:
        below = np.add.reduceat(counted.astype(float), starts)
        residual = below - below.sum() / n * sizes
        return count / (count - 1) * float(residual @ residual)

    # Where many samples have the same value, either side of it may be what sets the groups apart.
    sides = (samples <= value, samples < value)
    design_effect = max(1.0, *(between(side) / (n * q * (1 - q)) for side in sides))
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
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low

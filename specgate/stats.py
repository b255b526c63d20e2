"""Pure functions of lists: intervals for the means of log-ratios of paired blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_PAIRS = 3
"""Below this, a t-interval has one degree of freedom or none: no interval is given."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean with its two-sided interval; `slot_effect` is half the difference between the two orders of a pair."""

    mean: float
    low: float
    high: float
    slot_effect: float
    sd: float


def slot_interval(log_ratios: Sequence[float], orders: Sequence[int], alpha: float = 0.025) -> Interval | None:
    """t-interval of the mean of `log_ratios`, the order of each pair (+1 or −1) regressed out; None below MIN_PAIRS.

    `alpha` is the error on each side. Least squares of dᵢ = m + b·oᵢ; where all pairs ran in one order, b is not
    identified and the plain t-interval is given.
    """
    import numpy as np
    from scipy.stats import t

    n = len(log_ratios)
    if n < MIN_PAIRS:
        return None
    d, o = np.asarray(log_ratios, float), np.asarray(orders, float)
    columns = [np.ones(n), o] if len(set(orders)) > 1 else [np.ones(n)]
    design = np.stack(columns, axis=1)
    fit, *_ = np.linalg.lstsq(design, d, rcond=None)
    freedom = n - design.shape[1]
    residual = d - design @ fit
    sd = math.sqrt(float(residual @ residual) / freedom)
    half = float(t.ppf(1 - alpha, freedom)) * sd * math.sqrt(float(np.linalg.inv(design.T @ design)[0, 0]))
    mean = float(fit[0])
    return Interval(mean, mean - half, mean + half, float(fit[1]) if len(fit) > 1 else 0.0, sd)


def cluster_interval(
    numerators: Sequence[float], denominators: Sequence[float], alpha: float = 0.025
) -> Interval | None:
    """t-interval of the ratio Σ numerators / Σ denominators over clusters (one pair of sums per prompt).

    Linearised (Cochran's ratio estimator): residuals nᵢ − r·dᵢ, one per cluster, so that steps of one prompt are not
    taken for independent. None below MIN_PAIRS clusters.
    """
    import numpy as np
    from scipy.stats import t

    count = len(numerators)
    total = sum(denominators)
    if count < MIN_PAIRS or total == 0:
        return None
    n, d = np.asarray(numerators, float), np.asarray(denominators, float)
    ratio = float(n.sum() / d.sum())
    residual = n - ratio * d
    se = math.sqrt(count / (count - 1) * float(residual @ residual)) / float(d.sum())
    half = float(t.ppf(1 - alpha, count - 1)) * se
    return Interval(ratio, ratio - half, ratio + half, 0.0, se * math.sqrt(count))


def pairs_needed(sd: float, gap: float, have: int, alpha: float = 0.025) -> int:
    """Further pairs until the interval's half-width is below `gap` (both on the log scale), if `sd` stays as it is."""
    from scipy.stats import t

    if gap <= 0:
        return 0
    n = max(have, MIN_PAIRS)
    while float(t.ppf(1 - alpha, n - 2)) * sd / math.sqrt(n) > gap and n < 10_000:
        n += 1
    return n - have

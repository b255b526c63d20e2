"""Confidence interval of a simulated error rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats


def bound(wrong: NDArray[np.bool_], confidence: float = 0.99) -> tuple[float, float, float]:
    """(share of `wrong`, lower and upper end of its exact two-sided Clopper–Pearson interval)."""
    interval = scipy_stats.binomtest(int(wrong.sum()), len(wrong)).proportion_ci(confidence)
    return float(wrong.mean()), float(interval.low), float(interval.high)

"""Estimate the ratio of two figures that were not measured in turns, such as those of two runs or two back ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specgate.analysis.grouping import collected
from specgate.analysis.intervals.between_runs import half_width_of_two
from specgate.analysis.stats import ALPHA, MIN_PAIRS, cluster_interval, t_quantile
from specgate.analysis.two_builds.estimates import Counts, over_prompts
from specgate.contract import BetweenRuns

Logs = Mapping[int, float]
"""Prompt set → mean, over its rounds, of the logarithm of a figure."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its standard error, and the degrees of freedom of that error."""

    mean: float
    error: float
    freedom: float

    def interval(
        self, alpha: float = ALPHA, between: tuple[BetweenRuns, BetweenRuns] | None = None
    ) -> tuple[float, float]:
        """Two-sided t-interval with an error of `alpha` on each side.

        `between`: what each of two runs differs by from other runs of its build, where that is not in `error`. It is
        added as in `intervals.decision.interval`.
        """
        half = t_quantile(1 - alpha, self.freedom) * self.error
        if between is not None:
            half = math.hypot(half, half_width_of_two(*between, alpha))
        return self.mean - half, self.mean + half


def of_mean(values: Sequence[float]) -> Estimate | None:
    """The mean of `values` with its standard error; None if there are fewer than MIN_PAIRS values."""
    n = len(values)
    return Estimate(float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(n), n - 1) if enough(n) else None


def by_prompt_set(logs: Iterable[tuple[int, float]]) -> Logs:
    """The mean per prompt set. `logs`: (prompt set, logarithm of the figure) of every block.

    A prompt set is one cluster, however often it ran. Rounds repeat the greedy text of their prompt, so between two
    runs they differ alike (correlation 0.9998 on an H200) and are no new evidence.
    """
    return {prompt_set: math.fsum(set_logs) / len(set_logs) for prompt_set, set_logs in collected(logs).items()}


def log_ratio(a: Logs, b: Logs, *, paired: bool) -> Estimate | None:
    """The mean of ln(b / a), with prompt sets as clusters; None if there are fewer than MIN_PAIRS of them.

    If `paired`, prompt sets with the same number are the same prompts in a and b, and what they have in common cancels;
    otherwise the variances of a and b add up.
    """
    if paired:
        return of_mean([b[key] - a[key] for key in a if key in b])
    one, other = of_mean(list(a.values())), of_mean(list(b.values()))
    return difference(one, other) if one and other else None


def of_repetitions(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """The mean of ln(b / a) of repeated figures, all above 0; None if a side has fewer than MIN_PAIRS of them."""
    return log_ratio(*(dict(enumerate(map(math.log, side))) for side in (a, b)), paired=False)


def difference(a: Estimate, b: Estimate) -> Estimate:
    """b − a of two independent estimates, as in Welch's t-test: the degrees of freedom are Welch–Satterthwaite's."""
    va, vb = a.error**2, b.error**2
    freedom = (va + vb) ** 2 / (va**2 / a.freedom + vb**2 / b.freedom) if va + vb else a.freedom + b.freedom
    return Estimate(b.mean - a.mean, math.sqrt(va + vb), freedom)


def log_ratio_of_ratios(a: Counts, b: Counts, *, paired: bool) -> Estimate | None:
    """ln(r_b / r_a), where r is Σ numerators / Σ denominators over prompts.

    If `paired`, the same keys are the same prompts in a and b, and what they have in common cancels; otherwise the
    variances of a and b add up. None if there are fewer than MIN_PAIRS prompts, or if all numerators of one side are 0.
    """
    if paired:
        together = over_prompts(a, b)
        return Estimate(together.mean, together.error, together.freedom) if together else None
    one, other = _log_of_ratio(a), _log_of_ratio(b)
    return difference(one, other) if one and other else None


def enough(n: int) -> bool:
    return n >= MIN_PAIRS


def _log_of_ratio(counts: Counts) -> Estimate | None:
    """ln r of one side."""
    interval = cluster_interval([above for above, _ in counts.values()], [below for _, below in counts.values()])
    if interval is None or not interval.mean:
        return None
    return Estimate(math.log(interval.mean), interval.sd / math.sqrt(len(counts)) / interval.mean, interval.freedom)

"""Differences from process to process and from machine to machine. No single run can see it, so it is added.

A role is some tenths of a percent faster or slower in another process on the same GPU: where its memory came to lie and
which clock the GPU found are settled once per process. `machine calibrate` measures that with several processes.
Without a noise profile the largest spread that was ever seen is assumed.
"""

from __future__ import annotations

import math
from typing import Final

from specgate.analysis.intervals.autocorrelation import PRIOR_SD
from specgate.analysis.stats import ALPHA, t_quantile
from specgate.contract import BetweenRuns

ASSUMED: Final = BetweenRuns(process_sd=0.0052, process_freedom=None)
"""What is assumed where nothing was measured. Log-ratios of two processes were 0.02 to 0.45 % apart on H200s. With it,
verdicts keep their errors where processes differ by 0.6 % (docs/statistics.md).
"""
OF_TIME: Final = BetweenRuns(process_sd=0.0056, process_freedom=None)
"""What is assumed of the time of one role. Two of them are compared, each in a process of its own, so that their ratio
is allowed 0.79 %. With it, `since-green` keeps its errors where processes differ by 0.6 %.
"""
LEAST: Final = 0.0013
"""The standard deviation between processes that is allowed for beside a measured one, however small that came out.

A few processes in a row may all have met the same state of the machine. Two processes that differ so are 0.18 % apart
(sd), the least of the differences in step time that were found between processes on one GPU. docs/statistics.md has
what it prevents, and what it costs.
"""


def prior_sd(between: BetweenRuns) -> float:
    """The standard deviation of a pair that is expected beforehand: PRIOR_SD, or what a noise profile measured if that
    is more. A quiet profile says nothing of noise that comes after it.
    """
    return max(PRIOR_SD, between.pair_sd)


def half_width(between: BetweenRuns, error: float) -> float:
    """Bound on how far the true log-ratio lies from that of one process, with the chance `error` on one side."""
    process = max(_measured(between, error), _least(between, error))
    machine = _quantile(error, between.machine_freedom) * between.machine_sd if between.machine_freedom else 0.0
    return math.hypot(process, machine)


def least_counts(between: BetweenRuns, error: float) -> bool:
    """True if processes were measured to differ by less than the least spread that is allowed for."""
    return _least(between, error) > _measured(between, error)


def half_width_of_two(a: BetweenRuns, b: BetweenRuns, error: float) -> float:
    """The same for the difference of two runs, each of which has its own process; each at its own quantile."""
    return math.hypot(half_width(a, error), half_width(b, error))


def of_one_role(ratio: BetweenRuns | None) -> BetweenRuns:
    """Spread for a time of one role, from the measured spread of its ratio to the baseline; None if none was measured.

    What both roles share, such as the clock of a process, cancels in the ratio and not in the time: no less than what
    is assumed.
    """
    if ratio is None or half_width(ratio, ALPHA) < half_width(OF_TIME, ALPHA):
        return OF_TIME
    return ratio


def either(a: BetweenRuns, b: BetweenRuns) -> BetweenRuns:
    """Spread for the ratio of two roles, from that of the ratio of each to the baseline.

    Variances add up, as if the two had nothing in common, and the degrees of freedom are the fewer of both: neither is
    too small where they do have something in common.
    """
    return BetweenRuns(
        math.hypot(a.process_sd, b.process_sd),
        _fewer(a.process_freedom, b.process_freedom),
        math.hypot(a.machine_sd, b.machine_sd),
        _fewer(a.machine_freedom, b.machine_freedom),
        math.hypot(a.least_process_sd, b.least_process_sd),
        math.hypot(a.pair_sd, b.pair_sd),
    )


def _measured(between: BetweenRuns, error: float) -> float:
    return _quantile(error, between.process_freedom) * between.process_sd


def _least(between: BetweenRuns, error: float) -> float:
    return _quantile(error, None) * between.least_process_sd


def _fewer(a: int | None, b: int | None) -> int | None:
    return min((f for f in (a, b) if f is not None), default=None)


def _quantile(error: float, freedom: int | None) -> float:
    return t_quantile(1 - error, math.inf if freedom is None else freedom)

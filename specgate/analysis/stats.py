"""Paired blocks, intervals of their mean where pairs are independent, and the interim looks of a plan. Pure functions.

`analysis/intervals/` has the intervals that verdicts rest on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from specgate.contract import PASS_ROUNDS, BetweenRuns, Comparison, Scenario, TimeEnd

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

MIN_PAIRS = 3
"""Fewer pairs than this leave a t-interval one degree of freedom or none: no interval is given."""
MIN_FREEDOM = 3
"""Degrees of freedom that must remain for prompt sets to be told apart: with fewer, the larger t-quantile costs more
than it gains.
"""
ALPHA = 0.025
"""The error on each side of a 95 % interval."""
FIRST_LOOK = 8
"""Pairs before the first interim look."""
UNTIL_DECIDED = 4
"""Pairs before the first interim look of a point that is measured until it is decided."""
POWER = 0.8
"""The chance with which a minimum detectable effect is detected."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided interval.

    `order_effect`: half the difference between the two orders of a pair.
    `sd`: standard deviation of the residuals.
    `freedom`: degrees of freedom.
    `correlation`: how alike neighbouring pairs may be (`intervals.autocorrelation`); None where they are taken for
        independent.
    """

    mean: float
    low: float
    high: float
    order_effect: float
    sd: float
    freedom: int
    correlation: float | None = None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Paired blocks, one entry per pair in every list.

    `log_ratios`: ln(candidate / base).
    `orders`: +1 where the base ran first, −1 where the candidate did.
    `prompt_sets`: the prompt set of the pair.
    `turns`: the round of the pair, counted over the whole point in running order. A pair whose blocks emitted nothing
        is missing.
    """

    log_ratios: Sequence[float]
    orders: Sequence[int]
    prompt_sets: Sequence[int]
    turns: Sequence[int]

    @classmethod
    def of(cls, comparison: Comparison) -> Pairs:
        """The pairs of a comparison."""
        return cls(comparison.log_ratios, comparison.orders, comparison.prompt_sets, comparison.turns)

    def until(self, turn: int) -> Pairs:
        """The pairs of the first `turn` rounds."""
        return self._at([i for i, t in enumerate(self.turns) if t < turn])

    def _at(self, indices: Sequence[int]) -> Pairs:
        columns = (self.log_ratios, self.orders, self.prompt_sets, self.turns)
        d, o, p, t = ([column[i] for i in indices] for column in columns)
        return Pairs(d, [int(x) for x in o], [int(x) for x in p], [int(x) for x in t])

    def interval(self, alpha: float = ALPHA) -> Interval | None:
        """The interval of the mean log-ratio, as `order_interval` gives it."""
        return order_interval(self.log_ratios, self.orders, alpha, self.prompt_sets)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t-distribution with `freedom` degrees of freedom.

    What `scipy.stats.t.ppf` returns, without its module, whose import takes longer than a small run's other figures.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def order_interval(
    log_ratios: Sequence[float], orders: Sequence[int], alpha: float = ALPHA, prompt_sets: Sequence[int] = ()
) -> Interval | None:
    """t-interval of the mean of `log_ratios`; None for fewer than MIN_PAIRS. `alpha` is the error on each side.

    The model is dᵢ = m[prompt set of i] + b·oᵢ, fitted by least squares, with the order oᵢ of the pair (+1 or −1).
    The result is the mean of m over the prompt sets, however often each has run. Neither the order effect b nor
    differences between prompts then count as noise. This is justified because prompts are fixed and greedy decoding
    of them is deterministic: a gate speaks about these prompts.

    Where prompt sets were not repeated often enough to be told apart, one m serves for all. Their differences then
    count as noise, which can only widen the interval. Where all pairs ran in one order, b is left out.
    """
    import numpy as np

    n = len(log_ratios)
    if n < MIN_PAIRS:
        return None
    d = np.asarray(log_ratios, float)
    design, sets = next(designs(orders, prompt_sets))
    fit, *_ = np.linalg.lstsq(design, d, rcond=None)
    freedom = n - design.shape[1]
    residual = d - design @ fit
    sd = math.sqrt(float(residual @ residual) / freedom)
    weights = np.where(np.arange(design.shape[1]) < sets, 1 / sets, 0.0)
    scale = math.sqrt(float(weights @ np.linalg.inv(design.T @ design) @ weights))
    half = t_quantile(1 - alpha, freedom) * sd * scale
    mean = float(weights @ fit)
    return Interval(mean, mean - half, mean + half, float(fit[sets]) if len(fit) > sets else 0.0, sd, freedom)


def designs(orders: Sequence[float], prompt_sets: Sequence[int]) -> Iterator[tuple[Matrix, int]]:
    """(design matrix, how many of its columns stand for prompt sets), for designs that the pairs identify, the finest
    first.

    The choice depends only on what was run, never on what was measured.
    """
    import numpy as np

    n, order = len(orders), np.asarray(orders, float)[:, None]
    one, each = np.ones((n, 1)), np.asarray(prompt_sets)[:, None] == np.unique(prompt_sets)[None, :]
    if len(prompt_sets) == n and n - each.shape[1] - 1 >= MIN_FREEDOM:
        blocked = np.hstack([each.astype(float), order])
        if np.linalg.matrix_rank(blocked) == blocked.shape[1]:
            yield blocked, each.shape[1]
    if len(set(orders)) > 1:
        yield np.hstack([one, order]), 1
    yield one, 1


def cluster_interval(
    numerators: Sequence[float], denominators: Sequence[float], alpha: float = ALPHA
) -> Interval | None:
    """t-interval of the ratio Σ numerators / Σ denominators over clusters. A cluster is one pair of sums per prompt.

    Cochran's ratio estimator, linearised: the residuals nᵢ − r·dᵢ are taken per cluster, so that the steps of one
    prompt do not count as independent. None for fewer than MIN_PAIRS clusters.
    """
    import numpy as np

    count = len(numerators)
    total = sum(denominators)
    if count < MIN_PAIRS or total == 0:
        return None
    n, d = np.asarray(numerators, float), np.asarray(denominators, float)
    ratio = float(n.sum() / d.sum())
    residual = n - ratio * d
    se = math.sqrt(count / (count - 1) * float(residual @ residual)) / float(d.sum())
    half = t_quantile(1 - alpha, count - 1) * se
    return Interval(ratio, ratio - half, ratio + half, 0.0, se * math.sqrt(count), count - 1)


# ── interim looks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def planned_interim_looks(scenario: Scenario, ends: Sequence[TimeEnd] = ()) -> tuple[int, ...]:
    """The numbers of rounds after which a point takes an interim look. The last look is the end of the plan.

    An interim look comes where every prompt set has run equally often in both orders, at the first such place at or
    beyond 8, 16, 32, … pairs. Where a run was continued with more rounds than it had first been planned with, the ends
    of the earlier plans (`Schedule.extended`) remain looks, so that none of its looks moves. From one interim look to
    the next, the number of rounds doubles.

    A point that is measured until it is decided has looks from 4 pairs on. One more comes after the first pass over 8
    prompt sets, or a larger even number of them: half of each order has run then. `ends`: where the time of the point
    was spent, which are looks, too.
    """
    sets, schedule = scenario.workload.prompt_sets, scenario.schedule
    balanced = sets * PASS_ROUNDS * scenario.load_passes
    first = UNTIL_DECIDED if scenario.until_decided else FIRST_LOOK
    once = scenario.until_decided and sets >= FIRST_LOOK and not sets % 2 and not schedule.by_load
    looks: list[int] = [sets] if once else []
    for end in (sets * rounds for rounds in (*schedule.extended, scenario.rounds)):
        pairs = first
        while (look := -(-pairs // balanced) * balanced) < end:
            if look > max(looks, default=0):
                looks.append(look)
            pairs *= 2
        looks.append(end)
    return tuple(sorted({*looks, *(end.rounds for end in ends)}))


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome of the interim looks of a run.

    `side`: where the interval lies relative to the floor; `open` where it contains the floor.
    `look`: the look that decided, else the last one taken, counted from 1; 0 where none was taken.
    `looks`: how many looks are planned.
    `alpha`: the error of "above" at that look. `alpha_below`: that of "below".
    `interval`: the interval at that look; None where no look was taken or there were too few pairs.
    `between`: what the interval allows for between runs.
    """

    side: Literal["above", "below", "open"]
    look: int
    looks: int
    alpha: float
    pairs: int
    interval: Interval | None
    alpha_below: float
    between: BetweenRuns

    @property
    def confidence(self) -> float:
        """The confidence of the two-sided interval."""
        return 1 - self.alpha - self.alpha_below

    @property
    def final(self) -> bool:
        """True if no further look is planned."""
        return self.side != "open" or self.look == self.looks


def side_of(interval: Interval | None, floor: float) -> Literal["above", "below", "open"]:
    """Side of `floor` on which `interval` lies; `open` if it contains the floor, or if there is no interval."""
    if interval is None or interval.low < floor <= interval.high:
        return "open"
    return "above" if interval.low >= floor else "below"

"""Intervals for the mean log-ratio of paired blocks, and when such an interval decides. Pure functions of lists.

`decide` and `planned_looks` have the rules of statistics 1, which runs were stored with before scenarios had a version
of them. `analysis/intervals/` has those of statistics 2, which new runs are judged by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from specgate.contract import PASS_ROUNDS, BetweenRuns, Comparison, Scenario

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
"""The error on each side of a 95 % interval. In statistics 1 also that of a decision, over all its looks."""
LOOKS = (6, 10, 16, 24)
"""Numbers of pairs after which a run may take an interim look, in statistics 1."""
FIRST_LOOK = 8
"""Pairs before the first interim look of statistics 2."""
POWER = 0.8
"""The chance with which a minimum detectable effect is detected."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided interval.

    `order_effect`: half the difference between the two orders of a pair.
    `sd`: standard deviation of the residuals.
    `freedom`: degrees of freedom.
    `error`: the standard error that this run alone gives the mean, and `correlation`: how alike neighbouring pairs may
        be by it (`intervals.autocorrelation`). None where pairs are taken for independent.
    """

    mean: float
    low: float
    high: float
    order_effect: float
    sd: float
    freedom: int
    error: float | None = None
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

    def over(self, base: Pairs) -> Pairs:
        """ln(a / b), computed from these ln(a / c) and from ln(b / c) in `base`, for the rounds that both have."""
        theirs = dict(zip(base.turns, base.log_ratios, strict=True))
        both = self._at([i for i, t in enumerate(self.turns) if t in theirs])
        ratios = [d - theirs[t] for d, t in zip(both.log_ratios, both.turns, strict=True)]
        return Pairs(ratios, both.orders, both.prompt_sets, both.turns)

    def _at(self, kept: Sequence[int]) -> Pairs:
        columns = (self.log_ratios, self.orders, self.prompt_sets, self.turns)
        d, o, p, t = ([column[i] for i in kept] for column in columns)
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

    The model is dᵢ = m[prompt set of i] + b·oᵢ, fitted by least squares, with the order oᵢ of the pair (+1 or −1). The
    result is the mean of m over the pairs. Neither the order effect b nor differences between prompts then count as
    noise. This is justified because prompts are fixed and greedy decoding of them is deterministic: a gate speaks about
    these prompts.

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
    weights = np.where(np.arange(design.shape[1]) < sets, design.mean(axis=0), 0.0)
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


def planned_looks(scenario: Scenario) -> tuple[int, ...]:
    """The numbers of rounds after which a point takes an interim look. The last look is the end of the plan.

    A look comes at the end of a pass, when every prompt set has run equally often and in both orders. It is the first
    end of a pass at or beyond each number of LOOKS. A plan with fewer pairs than the first of these has one look, at
    its end. That is statistics 1; for statistics 2 see `doubling_looks`.
    """
    if scenario.statistics > 1:
        return doubling_looks(scenario)
    total = scenario.workload.prompt_sets * scenario.schedule.rounds
    a_pass = scenario.workload.prompt_sets * PASS_ROUNDS
    passes = range(a_pass, total, a_pass)
    early = {next((end for end in passes if end >= pairs), total) for pairs in LOOKS}
    return tuple(sorted({*early, total}))


def doubling_looks(scenario: Scenario) -> tuple[int, ...]:
    """The looks of statistics 2: the number of rounds doubles from one interim look to the next.

    An interim look comes where every prompt set has run equally often in both orders, at the first such place at or
    beyond 8, 16, 32, … pairs. Where a run was continued with more rounds than it had first been planned with, the ends
    of the earlier plans (`Schedule.extended`) remain looks, so that none of its looks moves.
    """
    sets, schedule = scenario.workload.prompt_sets, scenario.schedule
    balanced = sets * PASS_ROUNDS
    found: list[int] = []
    for end in (sets * rounds for rounds in (*schedule.extended, schedule.rounds)):
        pairs = FIRST_LOOK
        while (look := -(-pairs // balanced) * balanced) < end:
            if look > max(found, default=0):
                found.append(look)
            pairs *= 2
        found.append(end)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the interim looks of a run came to.

    `side`: where the interval lies relative to the floor; `open` where it contains the floor.
    `look`: the look that decided, else the last one taken, counted from 1; 0 where none was taken.
    `looks`: how many looks are planned.
    `alpha`: the error on each side per look.
    `interval`: the interval at that look; None where no look was taken or there were too few pairs.
    `alpha_below`: the error of "below" at that look, where it is not `alpha`.
    `between`: what the interval allows for between runs; None where it speaks of one process alone.
    """

    side: Literal["above", "below", "open"]
    look: int
    looks: int
    alpha: float
    pairs: int
    interval: Interval | None
    alpha_below: float | None = None
    between: BetweenRuns | None = None

    @property
    def confidence(self) -> float:
        """The confidence of the two-sided interval."""
        return 1 - self.alpha - (self.alpha if self.alpha_below is None else self.alpha_below)

    @property
    def final(self) -> bool:
        """Whether no further look is planned."""
        return self.side != "open" or self.look == self.looks


def decide(pairs: Pairs, rounds: int, looks: Sequence[int], floor: float) -> Decision:
    """Is the mean of `pairs` at least `floor` (log scale)? Asked at every look that `rounds` rounds have reached.

    The first look whose interval lies on one side of `floor` decides; later pairs change nothing. Each look spends an
    equal share of ALPHA (Bonferroni). The error on either side therefore stays below ALPHA, whatever the looks depend
    on.
    """
    alpha = ALPHA / len(looks)
    decision = Decision("open", 0, len(looks), alpha, 0, None)
    for number, look in enumerate(looks, 1):
        if look > rounds:
            break
        seen = pairs.until(look)
        interval = seen.interval(alpha)
        decision = Decision(side_of(interval, floor), number, len(looks), alpha, len(seen.turns), interval)
        if decision.side != "open":
            break
    return decision


def side_of(interval: Interval | None, floor: float) -> Literal["above", "below", "open"]:
    """Where `interval` lies relative to `floor`; `open` where it contains it, or where there is none."""
    if interval is None or interval.low < floor <= interval.high:
        return "open"
    return "above" if interval.low >= floor else "below"


# ── how much would be enough ─────────────────────────────────────────────────────────────────────────────────────────


def pairs_needed(sd: float, gap: float, have: int, alpha: float = ALPHA, fitted: int = 2) -> int:
    """Further pairs until the half-width of the interval is below `gap` (both on the log scale), if `sd` stays as it
    is.

    `have`: pairs so far.
    `fitted`: parameters that the interval fits, which is pairs minus degrees of freedom.
    """
    if gap <= 0:
        return 0
    n = max(have, fitted + 1)
    while t_quantile(1 - alpha, n - fitted) * sd / math.sqrt(n) > gap and n < 10_000:
        n += 1
    return n - have


def minimum_detectable_effect(sd: float, pairs: int, freedom: int, alpha: float = ALPHA) -> float:
    """The true mean (log scale) that an interval over `pairs` pairs excludes from zero with probability POWER."""
    return (t_quantile(1 - alpha, freedom) + t_quantile(POWER, freedom)) * sd / math.sqrt(pairs)

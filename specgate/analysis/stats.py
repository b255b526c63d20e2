"""Pure functions of lists: intervals for mean log-ratios of paired blocks, and when such an interval decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specgate.core import PASS_ROUNDS, Comparison, Scenario

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

MIN_PAIRS = 3
"""Below this, a t-interval has one degree of freedom or none: no interval is given."""
MIN_FREEDOM = 3
"""Prompt sets are told apart only where so many degrees of freedom remain: a t-quantile of fewer costs more."""
ALPHA = 0.025
"""The chance of a wrong decision on either side, over all looks of a run together."""
LOOKS = (6, 10, 16, 24)
"""Pairs after which a run may first ask whether it is decided."""
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean with its two-sided interval; `order_effect` is half the difference between the two orders of a pair."""

    mean: float
    low: float
    high: float
    order_effect: float
    sd: float
    freedom: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """One entry per pair: ln(candidate / base), its order (+1 base first, −1), its prompt set, and its turn.

    The turn counts the rounds of a point in running order; a pair whose blocks emitted nothing leaves its turn out.
    """

    log_ratios: Sequence[float]
    orders: Sequence[int]
    prompt_sets: Sequence[int]
    turns: Sequence[int]

    @classmethod
    def of(cls, comparison: Comparison) -> Pairs:
        return cls(comparison.log_ratios, comparison.orders, comparison.prompt_sets, comparison.turns)

    def until(self, turn: int) -> Pairs:
        """The pairs of the first `turn` rounds."""
        return self._at([i for i, t in enumerate(self.turns) if t < turn])

    def over(self, base: Pairs) -> Pairs:
        """ln(a / b) from ln(a / c) and ln(b / c), where both have a pair in the same round."""
        theirs = dict(zip(base.turns, base.log_ratios, strict=True))
        both = self._at([i for i, t in enumerate(self.turns) if t in theirs])
        ratios = [d - theirs[t] for d, t in zip(both.log_ratios, both.turns, strict=True)]
        return Pairs(ratios, both.orders, both.prompt_sets, both.turns)

    def _at(self, kept: Sequence[int]) -> Pairs:
        columns = (self.log_ratios, self.orders, self.prompt_sets, self.turns)
        d, o, p, t = ([column[i] for i in kept] for column in columns)
        return Pairs(d, [int(x) for x in o], [int(x) for x in p], [int(x) for x in t])

    def interval(self, alpha: float = ALPHA) -> Interval | None:
        return order_interval(self.log_ratios, self.orders, alpha, self.prompt_sets)


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t-distribution with `freedom` degrees of freedom.

    What `scipy.stats.t.ppf` returns, without its module, whose import takes longer than a small run's other figures.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def order_interval(
    log_ratios: Sequence[float], orders: Sequence[int], alpha: float = ALPHA, prompt_sets: Sequence[int] = ()
) -> Interval | None:
    """t-interval of the mean of `log_ratios`; None below MIN_PAIRS. `alpha` is the error on each side.

    Least squares of dᵢ = m[prompt set of i] + b·oᵢ, of which the mean of m over the pairs is given: neither the order
    of a pair (+1 or −1) nor what differs between prompts is then noise. Prompts are fixed and greedy decoding of them
    is deterministic, so a gate speaks of these prompts. Where prompt sets were not repeated often enough to tell them
    apart, one m serves all and their differences count as noise, which can only widen the interval; where all pairs
    ran in one order, b is left out.
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


def designs(orders: Sequence[int], prompt_sets: Sequence[int]) -> Iterator[tuple[Matrix, int]]:
    """Designs that the pairs identify, the finest first, each with how many of its columns stand for prompt sets.

    Which one serves depends on what was run, never on what was measured.
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
    """t-interval of the ratio Σ numerators / Σ denominators over clusters (one pair of sums per prompt).

    Linearised (Cochran's ratio estimator): residuals nᵢ − r·dᵢ, one per cluster, so that steps of one prompt are not
    taken for independent. None below MIN_PAIRS clusters.
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


# ── looks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def planned_looks(scenario: Scenario) -> tuple[int, ...]:
    """After how many rounds a point's pairs may be looked at; the last look is the end of the plan.

    A look comes at the end of a pass, when every prompt set has run equally often and in both orders: the first end
    of a pass at or beyond each of LOOKS. A plan of fewer pairs than the first of them has one look, at its end.
    """
    total = scenario.workload.prompt_sets * scenario.schedule.rounds
    a_pass = scenario.workload.prompt_sets * PASS_ROUNDS
    passes = range(a_pass, total, a_pass)
    early = {next((end for end in passes if end >= pairs), total) for pairs in LOOKS}
    return tuple(sorted({*early, total}))


@dataclass(frozen=True, slots=True)
class Decision:
    """What the looks of a run came to: `side` of the floor, at which of the planned looks (from 1; the last one
    taken where the floor still lies inside), and the interval of that look (None: no look, or too few pairs).
    """

    side: Literal["above", "below", "open"]
    look: int
    looks: int
    alpha: float
    pairs: int
    interval: Interval | None

    @property
    def final(self) -> bool:
        """Whether no further look is planned."""
        return self.side != "open" or self.look == self.looks


def decide(pairs: Pairs, rounds: int, looks: Sequence[int], floor: float) -> Decision:
    """Is the mean of `pairs` at least `floor` (log scale)? Asked at every look that `rounds` rounds have reached.

    The first look whose interval lies on one side of `floor` settles it, and later pairs change nothing. Each look
    spends an equal share of ALPHA (Bonferroni): whatever the looks depend on, either error stays below ALPHA.
    """
    alpha = ALPHA / len(looks)
    decision = Decision("open", 0, len(looks), alpha, 0, None)
    for number, look in enumerate(looks, 1):
        if look > rounds:
            break
        seen = pairs.until(look)
        interval = seen.interval(alpha)
        decision = Decision(_side(interval, floor), number, len(looks), alpha, len(seen.turns), interval)
        if decision.side != "open":
            break
    return decision


def _side(interval: Interval | None, floor: float) -> Literal["above", "below", "open"]:
    if interval is None or interval.low < floor <= interval.high:
        return "open"
    return "above" if interval.low >= floor else "below"


# ── how much would be enough ─────────────────────────────────────────────────────────────────────────────────────────


def pairs_needed(sd: float, gap: float, have: int, alpha: float = ALPHA, fitted: int = 2) -> int:
    """Further pairs until the interval's half-width is below `gap` (both on the log scale), if `sd` stays as it is.

    `fitted`: parameters that the interval fits (pairs less degrees of freedom).
    """
    if gap <= 0:
        return 0
    n = max(have, fitted + 1)
    while t_quantile(1 - alpha, n - fitted) * sd / math.sqrt(n) > gap and n < 10_000:
        n += 1
    return n - have


def minimum_detectable_effect(sd: float, pairs: int, freedom: int, alpha: float = ALPHA) -> float:
    """The true mean (log scale) that an interval over `pairs` pairs excludes from zero with chance POWER."""
    return (t_quantile(1 - alpha, freedom) + t_quantile(POWER, freedom)) * sd / math.sqrt(pairs)

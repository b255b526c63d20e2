"""How well drawn tokens fit the target's distribution, where logits are rounded.

Two engines that compute in bfloat16 have logits that differ by a few units in the last place, and 20,000 draws see a
quarter of a logit. So a policy says how many units the gap between two tokens may differ by. Where the spacing of the
logits cannot be seen, as in float32, none is granted.

Where bins expect few draws, the chi-square statistic varies more than its textbook distribution, and so its upper tail
is heavier. Its variance under the multinomial law is known exactly (Haldane 1937), and its distribution is taken for a
chi-square one that is scaled to that mean and variance. The G statistic is divided by Williams' correction (1976).
What is left of heavier tails is of one statistic or the other, so that only what both reject is rejected
(`contract.draws.FitTest.p`); `python -m bench.simulations.distribution_simulation` shows it.

With `slack` the counts are compared with every distribution whose logits are off by at most so much, and the one that
fits best counts, by its likelihood. The G statistic is then no larger than that of the true one among them, so that no
more false alarms come of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.tokens.last_place import FEWEST, unit_of
from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw

Floats = NDArray[np.float64]

Given = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slack:
    """Tolerance of each logit, divided by the temperature, after each beginning.

    `of`: beginning → slack. `elsewhere`: that after any other, the middle one of those that could be seen.
    """

    of: Mapping[Given, float]
    elsewhere: float

    def __bool__(self) -> bool:
        return bool(self.of)

    def after(self, beginning: Given) -> float:
        return self.of.get(beginning, self.elsewhere)


EXACT: Final = Slack({}, 0.0)


def slack_of(laws: Sequence[TokenLaw], temperature: float, ulps: float) -> Slack:
    """Convert `ulps` units of the logits behind `laws` to a tolerance.

    A gap that may differ by g leaves each of its two logits g / 2: a shift of all of them changes no probability.
    """
    if not ulps or temperature <= 0:
        return EXACT
    units = {law.given: unit for law in laws if (unit := logit_unit(law, temperature)) is not None}
    of = {beginning: ulps * unit / (2 * temperature) for beginning, unit in units.items()}
    return Slack(of, median_low(of.values()) if of else 0.0)


def logit_unit(law: TokenLaw, temperature: float) -> float | None:
    """One unit in the last place of the logits that `law` was made of; None where it cannot be seen."""
    top = sorted((p for p in law.probabilities if p > 0), reverse=True)[:FEWEST]
    return unit_of([temperature * math.log(p) for p in top])


def cut_elsewhere(laws: Sequence[TokenLaw], settings: Sampling, slack: Slack) -> bool:
    """True if rounding may make another engine rule out other tokens than `laws` do, by their rank or share.

    `slack`: of `laws`. Where so few tokens are left that none can be seen, that is not known, and counts as yes.
    """
    cuts = settings.top_p < 1 or settings.top_k > 0 or settings.min_p > 0
    return cuts and (bool(slack) or all(len(law.tokens) < FEWEST for law in laws))


LEAST_EXPECTED: Final = 10.0
"""Draws that a bin has to expect; those that expect fewer are pooled into one."""

ROUNDING: Final = 1e-9
"""By how much a root is looked for beyond where it can lie."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Statistics of one table of counts; of several tables their sums.

    `mean`, `variance`: of `chi_square` where nothing is wrong. `freedom`: degrees of freedom; 0 where there is but one
    bin, which says nothing.
    """

    chi_square: float = 0.0
    g: float = 0.0
    freedom: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def __add__(self, other: Fit) -> Fit:
        return Fit(
            self.chi_square + other.chi_square,
            self.g + other.g,
            self.freedom + other.freedom,
            self.mean + other.mean,
            self.variance + other.variance,
        )

    @property
    def p_chi_square(self) -> float:
        """The chance of a chi-square statistic as large."""
        if not self.freedom:
            return 1.0
        from scipy.special import gammaincc

        return float(gammaincc(self.mean**2 / self.variance, self.chi_square * self.mean / self.variance))

    @property
    def p_g(self) -> float:
        """The chance of a G statistic as large."""
        if not self.freedom:
            return 1.0
        from scipy.special import chdtrc

        return float(chdtrc(self.freedom, self.g))


def pools(expected: Sequence[float] | Floats) -> list[list[int]]:
    """Bins by index, pooled so that each pool expects LEAST_EXPECTED or more.

    Those that expect less share a pool; if it still expects too little, the least of the others joins them.
    """
    few = [i for i, e in enumerate(expected) if e < LEAST_EXPECTED]
    alone = sorted((i for i, e in enumerate(expected) if e >= LEAST_EXPECTED), key=lambda i: expected[i])
    if few and sum(expected[i] for i in few) < LEAST_EXPECTED and alone:
        few.append(alone.pop(0))
    return [[i] for i in alone] + ([few] if few else [])


def against_law(counts: Sequence[int], probabilities: Sequence[float], slack: float = 0.0) -> Fit:
    """Fit of `counts` to `probabilities`, which sum to 1, with logits that are off by at most `slack`."""
    n, p = sum(counts), np.asarray(probabilities, float)
    groups = pools(n * p)
    if len(groups) < 2:
        return Fit()
    shares = np.array([p[group].sum() for group in groups])
    observed = np.array([sum(counts[i] for i in group) for group in groups], float)
    shares = nearest_law(observed, shares, slack) if slack else shares
    expected, bins = n * shares, len(groups)
    inverse = float((1 / shares).sum())
    return Fit(
        chi_square=float(((observed - expected) ** 2 / expected).sum()),
        g=logs(observed, expected) / (1 + (inverse - 1) / (6 * n * (bins - 1))),
        freedom=bins - 1,
        mean=bins - 1,
        variance=2 * (bins - 1) + (inverse - bins**2 - 2 * bins + 2) / n,
    )


def nearest_law(observed: Floats, shares: Floats, slack: float) -> Floats:
    """Of all laws shares · exp(e) / Z with |e| ≤ `slack`, that under which `observed` is likeliest.

    The likelihood has one maximum. A bin whose e lies within the bounds expects there what was seen; so all of e follow
    from Z, for which the shares sum to 1.
    """
    from scipy.optimize import brentq

    log_tilts = np.log(np.maximum(observed, 1e-300) / shares)

    def tilted(scale: float) -> Floats:
        return shares * np.exp(np.clip(log_tilts - scale, -slack, slack))

    middle, reach = float(np.log(observed.sum())), slack + ROUNDING
    tilted_shares = tilted(
        brentq(lambda scale: scale + np.log(tilted(scale).sum()) - middle, middle - reach, middle + reach)
    )
    law: Floats = tilted_shares / tilted_shares.sum()
    return law


def against_other(counts: Sequence[int], others: Sequence[int], slack: float = 0.0) -> Fit:
    """Fit of `counts` and `others` to one unknown distribution, or to two whose logits are at most `slack` apart but
    for a shift of all of them.
    """
    n, m = sum(counts), sum(others)
    if not n or not m:
        return Fit()
    both = np.asarray(counts, float) + np.asarray(others, float)
    groups = pools(both * min(n, m) / (n + m))
    if len(groups) < 2:
        return Fit()
    observed = np.array([[sum(row[i] for i in group) for group in groups] for row in (counts, others)], float)
    mine = nearest_shares(observed, slack) if slack else np.full(len(groups), n / (n + m))
    expected = np.stack([mine, 1 - mine]) * observed.sum(axis=0)
    freedom, shares = len(groups) - 1, observed.sum(axis=0) / (n + m)
    williams = 1 + ((n + m) * (1 / n + 1 / m) - 1) * (float((1 / shares).sum()) - 1) / (6 * (n + m) * freedom)
    return Fit(
        chi_square=float(((observed - expected) ** 2 / expected).sum()),
        g=logs(observed, expected) / williams,
        freedom=freedom,
        mean=freedom,
        variance=2 * freedom,
    )


def nearest_shares(observed: Floats, slack: float) -> Floats:
    """Return, for each bin, the share of its draws in `observed` [2, bins] that is the first row's. Of all shares whose
    log-odds are within `slack` of one middle, these make `observed` likeliest.
    """
    from scipy.optimize import brentq
    from scipy.special import expit, logit

    both = observed.sum(axis=0)
    log_odds = logit(observed[0] / both)

    def shares(middle: float) -> Floats:
        clipped: Floats = expit(np.clip(log_odds, middle - slack, middle + slack))
        return clipped

    total, middle = observed[0].sum(), float(logit(observed[0].sum() / both.sum()))
    reach = float(np.abs(np.clip(log_odds, -50, 50) - middle).max()) + slack + ROUNDING
    return shares(brentq(lambda at: (both * shares(at)).sum() - total, middle - reach, middle + reach))


def logs(observed: Floats, expected: Floats) -> float:
    """2 Σ seen · ln(seen / expected), where what was not seen adds nothing."""
    from scipy.special import xlogy

    return float(2 * xlogy(observed, observed / expected).sum())

"""Texts → tests of their first token, and of the tokens after each beginning."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import exp
from operator import add
from typing import Final

from specgate.analysis.draws.goodness_of_fit import (
    EXACT,
    Fit,
    Slack,
    against_law,
    against_other,
    cut_elsewhere,
    slack_of,
)
from specgate.contract import BASELINE, Role, Sampling
from specgate.contract.draws import Against, Allowance, DrawCheck, DrawnTexts, FitTest, TokenLaw

LEAST_DRAWS: Final = 50
"""Draws after one beginning with which it is tested."""
MOST_LAWS: Final = 64
"""Beginnings whose distribution is asked for."""
NEVER: Final = 1e-9
"""The share of unlisted tokens below which they are as good as never drawn: rounding leaves no more. How often they may
be drawn all the same is counted with this share.
"""

Counts = Mapping[tuple[int, ...], Counter[int]]
"""The tokens before one → how often each token was drawn there."""
Texts = Sequence[tuple[tuple[int, ...], int]]


def counted(texts: Texts) -> Counts:
    """The tokens of `texts` by their beginnings."""
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text, times in texts:
        for position, token in enumerate(text):
            counts[text[:position]][token] += times
    return counts


def often_drawn(texts: Mapping[str, Texts]) -> list[tuple[int, ...]]:
    """The beginnings whose distribution is worth asking for: those that most texts have, all roles together."""
    total: Counter[tuple[int, ...]] = Counter()
    for of in texts.values():
        total.update({beginning: sum(tokens.values()) for beginning, tokens in counted(of).items()})
    likely = [beginning for beginning, draws in total.most_common(MOST_LAWS) if draws >= LEAST_DRAWS]
    return sorted(likely, key=lambda beginning: (len(beginning), beginning))


def check_draws(
    draws_of_roles: DrawnTexts, role: Role, settings: Sampling | None = None, allowed: Allowance | None = None
) -> DrawCheck:
    """Test the draws of `role` against the target's distribution, as another engine and as its own engine show it. Test
    those of a spec role against the baseline's draws, too.

    `settings`: how they were drawn; not needed where nothing is `allowed`. If they rule tokens out and rounding is
    allowed for, another engine may rule out others. Then nothing is compared with its distribution.
    """
    texts, laws = draws_of_roles.texts.get(role.name, ()), draws_of_roles.laws
    temperature, allowed = settings.temperature if settings else 1.0, allowed or Allowance()
    other, own = (
        slack_of(laws, temperature, allowed.another),
        slack_of(draws_of_roles.own_laws, temperature, allowed.own),
    )
    if settings is not None and allowed.another and cut_elsewhere(laws, settings, other):
        laws = ()
    own = own or slack_of(draws_of_roles.laws, temperature, allowed.own)
    counts = counted(texts)
    tests = [*against_laws(counts, laws, "target", other), *against_laws(counts, draws_of_roles.own_laws, "own", own)]
    if role.speculative and BASELINE.name in draws_of_roles.texts:
        tests += against_baseline(counts, counted(draws_of_roles.texts[BASELINE.name]), own)
    draws = sum(times for _, times in texts)
    return DrawCheck(
        draws,
        tuple(tests),
        draws_of_roles.law_engine,
        unshown(draws_of_roles, laws),
        draws_of_roles.undrawn,
        draws_of_roles.own_engine,
    )


def unshown(texts: DrawnTexts, laws: Sequence[TokenLaw]) -> str | None:
    """Return the reason that nothing is compared with another engine's distribution; None if `laws` are compared."""
    if texts.laws and not laws:
        return f"rounding may have {texts.law_engine} rule out other tokens"
    return texts.unshown


def against_laws(counts: Counts, laws: Sequence[TokenLaw], against: Against, slack: Slack = EXACT) -> Iterator[FitTest]:
    """One test per position for which the target's distribution is known, and that could fail: bins beside each other,
    a law of one token, or a token that is never drawn and was.
    """
    for position in sorted({len(law.given) for law in laws}):
        fits, draws, impossible, expected, certain, most = list[Fit](), 0, 0, 0.0, False, 0.0
        for law in laws:
            here = counts.get(law.given, Counter())
            if len(law.given) != position or here.total() < LEAST_DRAWS:
                continue
            observed, shares, others = table(here, law)
            off = slack.after(law.given)
            if others is not None:
                impossible, expected = impossible + others, expected + here.total() * NEVER * exp(2 * off)
                certain |= len(law.tokens) == 1
            fits.append(against_law(observed, shares, off))
            draws, most = draws + here.total(), max(most, off)
        if certain or impossible or sum(fit.freedom for fit in fits):
            yield fit_test(position, against, draws, fits, most, impossible, expected)


def table(here: Counter[int], law: TokenLaw) -> tuple[list[int], list[float], int | None]:
    """Counts and probabilities of the law's tokens and, in the last bin, of all others. Where others are as good as
    never drawn, they have no bin, and how often they were is what comes third; else None.
    """
    observed = [here[token] for token in law.tokens]
    others, rest = here.total() - sum(observed), 1 - sum(law.probabilities)
    if rest > NEVER:
        return [*observed, others], [*law.probabilities, rest], None
    return observed, list(law.probabilities), others


def against_baseline(counts: Counts, baseline: Counts, slack: Slack = EXACT) -> Iterator[FitTest]:
    """One test per position: are both drawn from one distribution?"""
    shared = [g for g in counts if min(counts[g].total(), baseline.get(g, Counter()).total()) >= LEAST_DRAWS]
    for position in sorted({len(beginning) for beginning in shared}):
        here = [beginning for beginning in shared if len(beginning) == position]
        fits = []
        for beginning in here:
            tokens = sorted(counts[beginning].keys() | baseline[beginning].keys())
            observed = [counts[beginning][t] for t in tokens]
            fits.append(against_other(observed, [baseline[beginning][t] for t in tokens], slack.after(beginning)))
        if sum(fit.freedom for fit in fits):
            draws, most = sum(counts[beginning].total() for beginning in here), max(map(slack.after, here))
            yield fit_test(position, "baseline", draws, fits, most)


def fit_test(
    position: int,
    against: Against,
    draws: int,
    fits: Sequence[Fit],
    slack: float,
    impossible: int = 0,
    expected: float = 0.0,
) -> FitTest:
    """The test of all `fits` together. `expected`: how many draws of tokens that are never drawn rounding explains."""
    whole = reduce(add, fits)
    return FitTest(
        position=position,
        against=against,
        draws=draws,
        contexts=len(fits),
        freedom=whole.freedom,
        chi_square=whole.chi_square,
        g=whole.g,
        p_chi_square=whole.p_chi_square,
        p_g=whole.p_g,
        impossible=impossible,
        p_impossible=at_least(impossible, expected),
        slack=slack,
    )


def at_least(count: int, mean: float) -> float:
    """The chance of `count` or more, of a Poisson distribution with this mean.

    What `scipy.stats.poisson.sf` returns, without its module: see `stats.t_quantile`.
    """
    from scipy.special import pdtrc

    return float(pdtrc(count - 1, mean)) if count else 1.0

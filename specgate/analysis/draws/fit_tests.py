"""Texts → tests of their first token, and of the tokens after each beginning."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import exp
from operator import add
from typing import Final

from specgate.analysis.draws.goodness_of_fit import Fit, against_law, against_other
from specgate.analysis.draws.rounding import EXACT, Slack, cut_elsewhere, slack_of
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
    found: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text, times in texts:
        for position, token in enumerate(text):
            found[text[:position]][token] += times
    return found


def often_drawn(texts: Mapping[str, Texts]) -> list[tuple[int, ...]]:
    """The beginnings whose distribution is worth asking for: those that most texts have, all roles together."""
    total: Counter[tuple[int, ...]] = Counter()
    for of in texts.values():
        total.update({given: sum(tokens.values()) for given, tokens in counted(of).items()})
    likely = [given for given, draws in total.most_common(MOST_LAWS) if draws >= LEAST_DRAWS]
    return sorted(likely, key=lambda given: (len(given), given))


def check_draws(
    drawn: DrawnTexts, role: Role, asked: Sampling | None = None, allowed: Allowance | None = None
) -> DrawCheck:
    """What the draws of `role` amount to: against the target's distribution as another engine shows it, as the engine
    shows it itself, and a spec role's against the baseline's draws.

    `asked`: how they were drawn; not needed where nothing is `allowed`. Where `asked` rules tokens out and rounding is
    allowed for, another engine may rule out others, and nothing is held against what it shows.
    """
    texts, laws = drawn.texts.get(role.name, ()), drawn.laws
    temperature, allowed = asked.temperature if asked else 1.0, allowed or Allowance()
    other, own = slack_of(laws, temperature, allowed.another), slack_of(drawn.own_laws, temperature, allowed.own)
    if asked is not None and allowed.another and cut_elsewhere(laws, asked, other):
        laws = ()
    own = own or slack_of(drawn.laws, temperature, allowed.own)
    counts = counted(texts)
    tests = [*against_laws(counts, laws, "target", other), *against_laws(counts, drawn.own_laws, "own", own)]
    if role.speculative and BASELINE.name in drawn.texts:
        tests += against_baseline(counts, counted(drawn.texts[BASELINE.name]), own)
    draws = sum(times for _, times in texts)
    return DrawCheck(draws, tuple(tests), drawn.law_engine, unshown(drawn, laws), drawn.undrawn, drawn.own_engine)


def unshown(drawn: DrawnTexts, laws: Sequence[TokenLaw]) -> str | None:
    """Why nothing is held against what another engine shows, `laws` being what is; None where something is."""
    if drawn.laws and not laws:
        return f"rounding may have {drawn.law_engine} rule out other tokens"
    return drawn.unshown


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
            seen, shares, others = table(here, law)
            off = slack.after(law.given)
            if others is not None:
                impossible, expected = impossible + others, expected + here.total() * NEVER * exp(2 * off)
                certain |= len(law.tokens) == 1
            fits.append(against_law(seen, shares, off))
            draws, most = draws + here.total(), max(most, off)
        if certain or impossible or sum(fit.freedom for fit in fits):
            yield fit_test(position, against, draws, fits, most, impossible, expected)


def table(here: Counter[int], law: TokenLaw) -> tuple[list[int], list[float], int | None]:
    """Counts and probabilities of the law's tokens and, in the last bin, of all others. Where others are as good as
    never drawn, they have no bin, and how often they were is what comes third; else None.
    """
    seen = [here[token] for token in law.tokens]
    others, rest = here.total() - sum(seen), 1 - sum(law.probabilities)
    if rest > NEVER:
        return [*seen, others], [*law.probabilities, rest], None
    return seen, list(law.probabilities), others


def against_baseline(counts: Counts, baseline: Counts, slack: Slack = EXACT) -> Iterator[FitTest]:
    """One test per position: are both drawn from one distribution?"""
    shared = [g for g in counts if min(counts[g].total(), baseline.get(g, Counter()).total()) >= LEAST_DRAWS]
    for position in sorted({len(given) for given in shared}):
        here = [given for given in shared if len(given) == position]
        fits = []
        for given in here:
            tokens = sorted(counts[given].keys() | baseline[given].keys())
            seen = [counts[given][t] for t in tokens]
            fits.append(against_other(seen, [baseline[given][t] for t in tokens], slack.after(given)))
        if sum(fit.freedom for fit in fits):
            draws, most = sum(counts[given].total() for given in here), max(map(slack.after, here))
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

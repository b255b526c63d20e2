"""Chi-square and G statistics against scipy, their variance by brute force, and their tails by simulation."""

from __future__ import annotations

from itertools import product
from math import factorial, prod

import numpy as np
import pytest
from scipy import optimize, special, stats

from bench.simulations.distribution_simulation import LAWS, chances, pooled
from specgate.analysis.draws.goodness_of_fit import (
    LEAST_EXPECTED,
    Fit,
    against_law,
    against_other,
    nearest_law,
    nearest_shares,
    pools,
)

SOURCE = np.random.default_rng(3)


def test_the_statistics_are_scipys_where_every_bin_is_large() -> None:
    law = SOURCE.dirichlet(np.full(12, 5.0))
    counts = SOURCE.multinomial(50_000, law).tolist()
    fit = against_law(counts, law.tolist())
    assert fit.freedom == 11
    expected = law * 50_000
    assert fit.chi_square == pytest.approx(stats.chisquare(counts, expected).statistic)
    g = stats.power_divergence(counts, expected, lambda_="log-likelihood").statistic
    assert fit.g == pytest.approx(g, rel=1e-3) and fit.g < g  # Williams' correction makes it a little smaller
    assert fit.p_chi_square == pytest.approx(stats.chisquare(counts, expected).pvalue, rel=0.01)


def test_two_tables_are_compared_as_scipy_does_it() -> None:
    law = SOURCE.dirichlet(np.full(9, 5.0))
    a, b = SOURCE.multinomial(30_000, law).tolist(), SOURCE.multinomial(9_000, law).tolist()
    fit = against_other(a, b)
    theirs = stats.chi2_contingency([a, b], correction=False)
    assert fit.freedom == theirs.dof
    assert fit.chi_square == pytest.approx(theirs.statistic)
    assert fit.p_chi_square == pytest.approx(theirs.pvalue)
    assert fit.g == pytest.approx(
        stats.chi2_contingency([a, b], correction=False, lambda_="log-likelihood").statistic, rel=1e-2
    )


def test_mean_and_variance_are_those_of_every_possible_table() -> None:
    n, law = 30, [0.5, 0.35, 0.15]  # the smallest n for which no bin is pooled would be 67: pool by hand
    moments = against_law([n * 10, 0, 0], law)  # 300 draws, three bins
    values, chances = [], []
    for counts in product(range(n + 1), repeat=3):
        if sum(counts) == n:
            chances.append(
                factorial(n) / prod(map(factorial, counts)) * prod(p**c for p, c in zip(law, counts, strict=True))
            )
            values.append(sum((c - n * p) ** 2 / (n * p) for p, c in zip(law, counts, strict=True)))
    mean = sum(c * v for c, v in zip(chances, values, strict=True))
    variance = sum(c * v * v for c, v in zip(chances, values, strict=True)) - mean**2
    assert mean == pytest.approx(moments.mean)
    # The exact variance is 2 (m - 1) + (Σ 1/p - m² - 2m + 2) / n: the part that depends on n is ten times as large.
    assert variance - 2 * 2 == pytest.approx(10 * (moments.variance - 2 * 2))


def test_rare_bins_are_pooled_and_no_pool_expects_too_little() -> None:
    assert pools([50, 3, 40, 4, 5]) == [[2], [0], [1, 3, 4]]
    assert pools([50, 3, 40]) == [[0], [1, 2]]
    assert pools([2, 3]) == [[0, 1]]
    for _ in range(50):
        expected = SOURCE.exponential(20, 30)
        result = pools(expected)
        assert sorted(i for group in result for i in group) == list(range(30))
        assert all(expected[group].sum() >= LEAST_EXPECTED for group in result)


def test_a_table_of_one_bin_says_nothing() -> None:
    for fit in (against_law([100], [1.0]), against_law([3, 2], [0.5, 0.5]), against_other([5, 0], [0, 5]), Fit()):
        assert (fit.freedom, fit.p_chi_square, fit.p_g) == (0, 1.0, 1.0)
    assert against_other([0, 0], [50, 50]).freedom == 0


@pytest.mark.parametrize("small", [False, True])
def test_both_chances_are_as_rare_as_they_say(small: bool) -> None:
    """With bins that expect LEAST_EXPECTED draws each, and with a law that falls off as that of text does."""
    law = np.full(20, 1 / 20) if small else 1 / np.arange(1, 101) / (1 / np.arange(1, 101)).sum()
    draws = 200 if small else 2_000
    fits = [against_law(counts.tolist(), law.tolist()) for counts in SOURCE.multinomial(draws, law, 4_000)]
    for p in (np.array([f.p_chi_square for f in fits]), np.array([f.p_g for f in fits])):
        for level in (0.05, 0.01):
            assert stats.binomtest(int((p < level).sum()), len(p), level).pvalue > 1e-4


def test_sums_of_tables_are_as_rare_as_they_say() -> None:
    laws = [SOURCE.dirichlet(np.ones(15)) for _ in range(6)]
    p = []
    for _ in range(800):
        fits = [against_law(SOURCE.multinomial(400, law).tolist(), law.tolist()) for law in laws]
        p.append(sum(fits[1:], fits[0]).p_chi_square)
    assert stats.kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
def test_the_simulation_judges_as_the_gate_does(law: str) -> None:
    probabilities, draws = LAWS[law]
    shares = pooled(probabilities, draws)
    counts = SOURCE.multinomial(draws, shares, 20)
    for row, p_chi_square, p_g in zip(counts, *chances(counts.astype(float), shares, draws), strict=True):
        fit = against_law(row.tolist(), shares.tolist())
        assert fit.p_chi_square == pytest.approx(p_chi_square)
        assert fit.p_g == pytest.approx(p_g)


@pytest.mark.parametrize("slack", [0.02, 0.25, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_nearest_law_is_that_of_a_general_optimiser(seed: int, slack: float) -> None:
    source = np.random.default_rng(seed)
    law = source.dirichlet(np.full(6, 2.0))
    seen = source.multinomial(4_000, source.dirichlet(np.full(6, 2.0))).astype(float)

    def unlikely(tilt: np.ndarray) -> float:
        return float(-(seen * special.log_softmax(np.log(law) + tilt)).sum())

    best = optimize.minimize(unlikely, np.zeros(6), bounds=[(-slack, slack)] * 6, method="L-BFGS-B", tol=1e-14)
    nearest = nearest_law(seen, law, slack)
    assert nearest.sum() == pytest.approx(1)
    apart = np.log(nearest / law)
    assert apart.max() - apart.min() <= 2 * slack + 1e-9
    mine = float(-(seen * np.log(nearest)).sum())
    assert mine == pytest.approx(best.fun, rel=1e-7) or mine < best.fun


@pytest.mark.parametrize("slack", [0.02, 0.25, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_nearest_shares_are_those_of_a_general_optimiser(seed: int, slack: float) -> None:
    source = np.random.default_rng(seed)
    seen = np.stack([source.multinomial(n, source.dirichlet(np.full(5, 3.0))) for n in (3_000, 9_000)]).astype(float)

    def unlikely(at: np.ndarray) -> float:
        share = special.expit(at[0] + at[1:])
        return float(-(special.xlogy(seen[0], share) + special.xlogy(seen[1], 1 - share)).sum())

    bounds = [(-20, 20), *[(-slack, slack)] * 5]
    best = optimize.minimize(unlikely, np.zeros(6), bounds=bounds, method="L-BFGS-B", tol=1e-14)
    nearest = nearest_shares(seen, slack)
    odds = special.logit(nearest)
    assert odds.max() - odds.min() <= 2 * slack + 1e-9
    mine = float(-(special.xlogy(seen[0], nearest) + special.xlogy(seen[1], 1 - nearest)).sum())
    assert mine == pytest.approx(best.fun, rel=1e-7) or mine < best.fun


def test_counts_of_any_law_within_the_slack_fit_and_of_one_beyond_it_do_not() -> None:
    law, slack = SOURCE.dirichlet(np.full(30, 1.0)), 0.25
    for size, fits in ((slack, True), (2 * slack, False)):
        tilt = size * SOURCE.choice([-1.0, 1.0], 30)
        other = law * np.exp(tilt) / (law * np.exp(tilt)).sum()
        counts = SOURCE.multinomial(20_000, other).tolist()
        plain, tolerant = against_law(counts, law.tolist()), against_law(counts, law.tolist(), slack)
        assert max(plain.p_chi_square, plain.p_g) < 1e-12
        assert (max(tolerant.p_chi_square, tolerant.p_g) > 0.01) == fits
        assert tolerant.g <= plain.g and tolerant.freedom == plain.freedom
        baseline = SOURCE.multinomial(20_000, law).tolist()
        beside = against_other(counts, baseline, slack)
        assert (max(beside.p_chi_square, beside.p_g) > 0.01) == fits
        assert max(against_other(counts, baseline).p_chi_square, against_other(counts, baseline).p_g) < 1e-12


def test_slack_raises_no_more_alarms_than_it_says_at_the_edge_of_what_it_allows() -> None:
    law, slack, runs = SOURCE.dirichlet(np.full(12, 3.0)), 0.25, 2_000
    tilt = slack * np.where(np.arange(12) % 2, 1.0, -1.0)
    edge = law * np.exp(tilt) / (law * np.exp(tilt)).sum()
    fits = [against_law(SOURCE.multinomial(5_000, edge).tolist(), law.tolist(), slack) for _ in range(runs)]
    for level in (0.05, 0.01):
        assert np.mean([max(f.p_chi_square, f.p_g) < level for f in fits]) <= level


def test_counts_that_are_all_in_one_bin_have_a_nearest_law() -> None:
    for counts in ([200, 0, 0], [0, 0, 200]):
        fit = against_law(counts, [0.2, 0.3, 0.5], 0.25)
        assert fit.freedom == 2 and max(fit.p_chi_square, fit.p_g) < 1e-9
        assert against_other(counts, [100, 50, 50], 0.25).freedom

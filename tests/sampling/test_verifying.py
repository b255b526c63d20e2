"""Verification against the exact law of small chains: brute force over every text, reduced vocabularies too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from specgate.errors import BackendError
from specgate.sampling.distributions import check_distribution, over_target
from specgate.sampling.keys import Floats, Integers, Keys
from specgate.sampling.rejection import draft_sample, sample, verify_by_rejection, verify_coupled
from tests.sampling import acceptance
from tests.sampling.small_chains import FAULTS, Verify, by_coupling, plain_texts, speculative_texts

SOURCE = np.random.default_rng(12)
V, K, LENGTH, DRAWS = 5, 2, 4, 40_000
TARGET = SOURCE.dirichlet(np.full(V, 0.7), V)
DRAFT = SOURCE.dirichlet(np.full(V, 0.7), V)
REDUCED = over_target(SOURCE.dirichlet(np.full(3, 0.9), V), np.array([4, 0, 2]), V)
FILTERED = np.where(np.sort(TARGET, axis=1)[:, 2:3] <= TARGET, TARGET, 0)
FILTERED = FILTERED / FILTERED.sum(axis=1, keepdims=True)
GREEDY = np.eye(V)[DRAFT.argmax(axis=1)]


def keys(seed: int = 1, requests: int = DRAWS) -> Keys:
    return Keys(seed, np.arange(requests, dtype=np.uint64), np.full(requests, 10))


def p_value(texts: Integers, target: Floats) -> float:
    """Return the fit of texts after token 0 to the chain: a chi-square test over all V**LENGTH texts, rare ones
    together.
    """
    counts = np.bincount(texts @ V ** np.arange(LENGTH)[::-1], minlength=V**LENGTH)
    law = np.array(
        [np.prod([target[a, b] for a, b in zip((0, *t), t, strict=False)]) for t in product(range(V), repeat=LENGTH)]
    )
    assert counts[law == 0].sum() == 0
    often = law * len(texts) >= 5
    observed = np.array([*counts[often], counts[~often].sum()])
    expected = np.array([*law[often], law[~often].sum()]) * len(texts)
    return float(stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue)


CASES = pytest.mark.parametrize(
    ("target", "draft"),
    [(TARGET, DRAFT), (TARGET, REDUCED), (FILTERED, DRAFT), (FILTERED, REDUCED), (TARGET, GREEDY), (TARGET, TARGET)],
    ids=["full", "reduced", "filtered", "filtered and reduced", "greedy draft", "the target itself"],
)


@CASES
@pytest.mark.parametrize("verify", [verify_by_rejection, by_coupling])
def test_the_texts_have_the_targets_law(verify: Verify, target: Floats, draft: Floats) -> None:
    """With drafts that are drawn freely; coupled ones give the texts of plain sampling itself, as seen below."""
    texts, _ = speculative_texts(target, draft, 0, LENGTH, keys(), K, verify)
    assert p_value(texts, target) > 1e-3


@pytest.mark.parametrize("target", [TARGET, FILTERED], ids=["full", "filtered"])
def test_plain_sampling_has_the_targets_law(target: Floats) -> None:
    assert p_value(plain_texts(target, 0, LENGTH, keys()), target) > 1e-3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_verify_has_another_law(fault: str) -> None:
    texts, _ = speculative_texts(TARGET, DRAFT, 0, LENGTH, keys(requests=20_000), K, FAULTS[fault])
    assert p_value(texts, np.maximum(TARGET, 1e-300)) < 1e-9


@CASES
def test_coupled_speculation_emits_plain_samplings_tokens(target: Floats, draft: Floats) -> None:
    plain = plain_texts(target, 0, 12, keys(requests=2_000))
    for k in (1, 3):
        texts, accepted = speculative_texts(target, draft, 0, 12, keys(requests=2_000), k, by_coupling, coupled=True)
        assert (texts == plain).all()
        assert accepted.max() > 0


def test_a_requests_tokens_do_not_depend_on_what_shares_its_step() -> None:
    for verify in (by_coupling, verify_by_rejection):
        together, _ = speculative_texts(TARGET, DRAFT, 0, 9, keys(requests=8), K, verify)
        for slot in range(8):
            alone, _ = speculative_texts(TARGET, DRAFT, 0, 9, keys(requests=8).of(np.array([slot])), K, verify)
            assert (alone == together[slot]).all()


@pytest.mark.parametrize("draft", [DRAFT, REDUCED, TARGET], ids=["full", "reduced", "the target itself"])
def test_each_way_accepts_as_often_as_its_formula_says(draft: Floats) -> None:
    each, first = keys(), np.zeros(DRAWS, np.int64)
    p, q = TARGET[0], draft[0]
    chances = {
        "rejection": acceptance.by_rejection(p, q),
        "coupled": acceptance.coupled(p, q),
        "greedy draft": acceptance.of_a_greedy_draft(p, q),
    }
    rows = np.stack((TARGET[first], TARGET[first]), axis=1)
    alike = draft_sample(draft[first], each, coupled=True)[:, None]
    free = draft_sample(draft[first], each, coupled=False)[:, None]
    best = np.full((DRAWS, 1), q.argmax())
    counted = {
        "rejection": verify_by_rejection(rows, draft[first][:, None], free, each).accepted.sum(),
        "coupled": verify_coupled(rows, alike, each).accepted.sum(),
        "greedy draft": verify_coupled(rows, best, each).accepted.sum(),
    }
    for name, chance in chances.items():
        assert stats.binomtest(int(counted[name]), DRAWS, min(chance, 1.0)).pvalue > 1e-3, name


def test_the_coupled_acceptance_is_the_double_sum_and_lies_between_its_bounds() -> None:
    for _ in range(50):
        p, q = SOURCE.dirichlet(np.full(30, 0.2)), SOURCE.dirichlet(np.full(30, 0.2))
        p[SOURCE.random(30) < 0.2] = 0
        p /= p.sum()
        q[SOURCE.random(30) < 0.3] = 0
        q /= q.sum()
        both = [i for i in range(30) if p[i] > 0 and q[i] > 0]
        plain = sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(30)) for i in both)
        most = acceptance.by_rejection(p, q)
        coupled = acceptance.coupled(p, q)
        assert coupled == pytest.approx(plain, rel=1e-12)
        assert most / (2 - most) - 1e-12 <= coupled <= most + 1e-12


def test_rows_of_no_meaning_repeat_the_last_emitted_token() -> None:
    for verify in (by_coupling, verify_by_rejection):
        drafts = draft_sample(DRAFT[np.zeros(300, np.int64)], keys(requests=300), coupled=False)
        drafts = np.stack((drafts, drafts), axis=1)
        rows = np.tile(TARGET[0], (300, 3, 1))
        problems = verify(rows, np.tile(DRAFT[0], (300, 2, 1)), drafts, keys(requests=300))
        for n, tokens in zip(problems.accepted, problems.tokens, strict=True):
            assert (tokens[n + 1 :] == tokens[n]).all()


# Bad distributions


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: np.where(np.arange(V) == 3, np.nan, p), "the probability of token 3 is NaN"),
        (lambda p: p - 2 * p[2] * (np.arange(V) == 2), "the probability of token 2 is -.*, less than 0"),
        (lambda p: p * 0.98, "sum to 0.98, not to 1"),
    ],
)
def test_a_distribution_that_is_none_is_refused_and_never_renormalised(change: object, why: str) -> None:
    assert callable(change)
    bad, each = change(TARGET[0])[None], keys(requests=1)
    drafts = np.array([[1]])
    good = TARGET[:1]
    for call in (
        lambda: check_distribution(bad, "it"),
        lambda: sample(bad, each),
        lambda: draft_sample(bad, each, coupled=True),
        lambda: verify_coupled(np.stack((bad, good), axis=1), drafts, each),
        lambda: verify_by_rejection(np.stack((good, bad), axis=1), good[:, None], drafts, each),
        lambda: verify_by_rejection(np.stack((good, good), axis=1), bad[:, None], drafts, each),
    ):
        with pytest.raises(BackendError, match=why):
            call()


def test_a_draft_token_that_its_own_distribution_rules_out_is_named() -> None:
    rows = np.stack((TARGET[:1], TARGET[:1]), axis=1)
    with pytest.raises(BackendError, match="draft token 1 of request 0 has the probability 0 in its own distribution"):
        verify_by_rejection(rows, REDUCED[:1, None], np.array([[1]]), keys(requests=1))


def test_a_draft_with_mass_where_the_target_has_none_is_named() -> None:
    with pytest.raises(BackendError, match=r"draft token 1 stands for the target's token 9.*puts 0\.25 where"):
        over_target(np.array([0.5, 0.25, 0.25]), np.array([0, 9, 2]), V)
    with pytest.raises(BackendError, match="two draft tokens stand for the target's token 2"):
        over_target(np.array([0.5, 0.25, 0.25]), np.array([0, 2, 2]), V)

"""Tests of whole texts: a right verify passes, faulty ones do not, and impossible draws need no statistic."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from specgate.analysis.draws.fitting import LEAST_DRAWS, MOST_LAWS, check_draws, often_drawn
from specgate.core import BASELINE, Role
from specgate.core.draws import DrawCheck, DrawnTexts, TokenLaw
from specgate.sampling.keys import Floats, Integers, Keys
from specgate.sampling.rejection import verify_by_rejection
from specgate.selftest.small_chains import FAULTS, Verify, by_coupling, plain_texts, speculative_texts

V, DRAWS, SPEC = 12, 20_000, Role(3)
SOURCE = np.random.default_rng(8)
TARGET, DRAFT = SOURCE.dirichlet(np.full(V, 0.5), V), SOURCE.dirichlet(np.full(V, 0.5), V)
DRAFT = (2 * TARGET + DRAFT) / 3


def keys(seed: int) -> Keys:
    return Keys(seed, np.arange(DRAWS, dtype=np.uint64), np.zeros(DRAWS, np.int64))


def as_counts(texts: Integers) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple(sorted(Counter(map(tuple, texts.tolist())).items()))


def laws(texts: DrawnTexts, target: Floats, least: float = 0.0) -> tuple[TokenLaw, ...]:
    found = []
    for given in often_drawn(texts.texts):
        row = target[given[-1] if given else 0]
        kept = np.flatnonzero(row > least)
        found.append(TokenLaw(given, tuple(kept.tolist()), tuple(row[kept].tolist())))
    return tuple(found)


def drawn(verify: Verify, *, with_laws: bool = True, target: Floats = TARGET) -> DrawnTexts:
    spec, _ = speculative_texts(target, DRAFT, 0, 4, keys(1), 3, verify)
    texts = {BASELINE.name: as_counts(plain_texts(target, 0, 4, keys(2))), SPEC.name: as_counts(spec)}
    found = DrawnTexts("p", (0,), texts, (), None, "nobody was asked", None, (0, 1))
    if not with_laws:
        return found
    return DrawnTexts("p", (0,), texts, laws(found, target), "reference", None, None, (0, 1))


@pytest.mark.parametrize("with_laws", [True, False])
@pytest.mark.parametrize("verify", [verify_by_rejection, by_coupling])
def test_a_right_verify_fits(verify: Verify, with_laws: bool) -> None:
    check = check_draws(drawn(verify, with_laws=with_laws), SPEC)
    assert (check.draws, len(check.tests)) == (DRAWS, 8 if with_laws else 4)
    assert check.p > 1e-3


@pytest.mark.parametrize("with_laws", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_verify_does_not(fault: str, with_laws: bool) -> None:
    assert check_draws(drawn(FAULTS[fault], with_laws=with_laws), SPEC).p < 1e-9


def test_the_baseline_is_held_against_the_law_alone() -> None:
    check = check_draws(drawn(verify_by_rejection), BASELINE)
    assert {test.against for test in check.tests} == {"target"} and check.p > 1e-3
    alone = check_draws(drawn(verify_by_rejection, with_laws=False), BASELINE)
    assert (alone.tests, alone.p, alone.worst) == ((), 1.0, None)


def test_unlisted_tokens_are_one_bin() -> None:
    texts = drawn(by_coupling)
    few = DrawnTexts("p", (0,), texts.texts, laws(texts, TARGET, least=0.05), "reference", None, None, (0, 1))
    check = check_draws(few, SPEC)
    assert check.p > 1e-3
    assert check.tests[0].freedom < check_draws(texts, SPEC).tests[0].freedom


def of_one_token(law: TokenLaw, *counts: tuple[int, int], baseline: tuple[tuple[int, int], ...] = ()) -> DrawCheck:
    texts = {SPEC.name: tuple(((token,), times) for token, times in counts)}
    if baseline:
        texts[BASELINE.name] = tuple(((token,), times) for token, times in baseline)
    return check_draws(DrawnTexts("p", (0,), texts, (law,), "reference", None, None, (0, 1)), SPEC)


def test_two_draws_that_the_target_never_makes_are_enough_and_one_is_what_rounding_may_leave() -> None:
    law = TokenLaw((), (0, 1), (0.25, 0.75 - 9e-10))
    one, two = (of_one_token(law, (0, 5_000), (1, 15_000 - count), (2, count)) for count in (1, 2))
    assert one.worst is not None and one.worst.impossible == 1 and 1e-6 < one.p < 1e-3
    assert two.worst is not None and two.worst.impossible == 2 and two.p < 1e-8


def test_texts_that_no_test_could_reject_have_no_test() -> None:
    """All draws are the likeliest token of a law whose other tokens are too rare for a bin of their own."""
    check = of_one_token(TokenLaw((), (0, 1), (0.9997, 0.0003)), (0, 20_000), baseline=((0, 19_994), (1, 6)))
    assert (check.draws, check.tests, check.worst) == (20_000, (), None)


def test_of_a_law_of_one_token_any_other_is_impossible() -> None:
    law = TokenLaw((), (7,), (1.0,))
    assert of_one_token(law, (7, 20_000)).p == 1.0
    assert of_one_token(law, (7, 19_990), (0, 10)).p < 1e-12


def test_beginnings_that_few_texts_have_are_left_out() -> None:
    texts = {"baseline": (((1, 2), LEAST_DRAWS - 1), ((3, 4), LEAST_DRAWS)), "spec-3": (((1, 5), 1),)}
    assert often_drawn(texts) == [(), (1,), (3,)]
    many = {"baseline": tuple(((i, 0), LEAST_DRAWS + i) for i in range(2 * MOST_LAWS))}
    assert len(often_drawn(many)) == MOST_LAWS


def test_the_chance_counts_every_test() -> None:
    check = check_draws(drawn(by_coupling), SPEC)
    assert isinstance(check, DrawCheck) and check.worst is not None
    assert check.p == pytest.approx(min(1.0, len(check.tests) * check.worst.p))

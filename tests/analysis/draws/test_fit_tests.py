"""Tests of whole texts: a right verify passes, faulty ones do not, and impossible draws need no statistic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from specgate.analysis.draws.fit_tests import LEAST_DRAWS, MOST_LAWS, check_draws, often_drawn
from specgate.contract import BASELINE, Role, Sampling
from specgate.contract.draws import Allowance, DrawCheck, DrawnTexts, TokenLaw
from specgate.sampling.keys import Floats, Keys
from specgate.sampling.rejection import verify_by_rejection
from tests.sampling.small_chains import FAULTS, Verify, by_coupling, plain_texts, speculative_texts

V, DRAWS, SPEC = 12, 20_000, Role(3)
SOURCE = np.random.default_rng(8)
TARGET, DRAFT = SOURCE.dirichlet(np.full(V, 0.5), V), SOURCE.dirichlet(np.full(V, 0.5), V)
DRAFT = (2 * TARGET + DRAFT) / 3


def of_bfloat16(logits: Floats) -> Floats:
    """Rows that an engine has whose logits are rounded to bfloat16."""
    rounded = torch.tensor(logits).bfloat16().double()
    shares: Floats = torch.softmax(rounded, -1).numpy()
    return shares


LOGITS = 40 + SOURCE.normal(0, 1, (V, V))
ROWS = {
    "target": TARGET,
    "own": of_bfloat16(LOGITS),
    "another's": of_bfloat16(LOGITS + SOURCE.normal(0, 0.15, (V, V))),
    "half the temperature": of_bfloat16(40 + 2 * (LOGITS - 40)),
}
ALLOWED = Allowance(another=4)


def keys(seed: int) -> Keys:
    return Keys(seed, np.arange(DRAWS, dtype=np.uint64), np.zeros(DRAWS, np.int64))


@cache
def counts(rows: str, verify: Verify | None) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Text → how often it is drawn from these rows: by plain sampling, if there is no verify."""
    if verify:
        texts, _ = speculative_texts(ROWS[rows], DRAFT, 0, 4, keys(1), 3, verify)
    else:
        texts = plain_texts(ROWS[rows], 0, 4, keys(2))
    return tuple(sorted(Counter(map(tuple, texts.tolist())).items()))


def laws(texts: DrawnTexts, rows: str, least: float = 0.0) -> tuple[TokenLaw, ...]:
    values = []
    for given in often_drawn(texts.texts):
        row = ROWS[rows][given[-1] if given else 0]
        kept = np.flatnonzero(row > least)
        values.append(TokenLaw(given, tuple(kept.tolist()), tuple(row[kept].tolist())))
    return tuple(values)


def drawn(verify: Verify, *, with_laws: bool = True, rows: str = "target") -> DrawnTexts:
    texts = {BASELINE.name: counts(rows, None), SPEC.name: counts(rows, verify)}
    made = DrawnTexts("p", (0,), texts, (), None, "nobody was asked", None, (0, 1))
    return replace(made, laws=laws(made, rows), law_engine="reference", unshown=None) if with_laws else made


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
    check = check_draws(replace(texts, laws=laws(texts, "target", least=0.05)), SPEC)
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


def rounding(rows: str = "own", shown: str | None = "own", *, verify: Verify = by_coupling) -> DrawnTexts:
    """Texts of an engine whose target has `rows` and that shows `shown`, with another's distribution beside them."""
    texts = drawn(verify, with_laws=False, rows=rows)
    own = () if shown is None else laws(texts, shown)
    return replace(texts, laws=laws(texts, "another's"), law_engine="reference", own_laws=own, own_engine="this one")


def test_an_engine_that_rounds_otherwise_fits_where_the_policy_allows_for_it_and_only_there() -> None:
    assert check_draws(rounding(), SPEC, Sampling()).p < 1e-9
    check = check_draws(rounding(), SPEC, Sampling(), ALLOWED)
    assert check.p > 1e-3
    assert {test.against for test in check.tests} == {"target", "own", "baseline"}
    assert {test.slack for test in check.tests if test.against == "target"} == {0.5}  # 2 units of 1/4
    assert {test.slack for test in check.tests if test.against != "target"} == {0.0}


def test_what_an_engine_shows_itself_is_held_to_its_draws_exactly() -> None:
    """It may round as it likes, but it draws from what it shows."""
    check = check_draws(rounding(shown="another's"), SPEC, Sampling(), ALLOWED)
    assert check.worst is not None and (check.worst.against, check.p < 1e-9) == ("own", True)


def test_an_engine_whose_logits_are_another_models_is_seen_though_it_draws_from_what_it_shows() -> None:
    check = check_draws(rounding("half the temperature", "half the temperature"), SPEC, Sampling(), ALLOWED)
    assert check.worst is not None and (check.worst.against, check.p < 1e-9) == ("target", True)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shown", [True, False])
def test_a_faulty_verify_is_seen_beside_what_is_allowed(fault: str, shown: bool) -> None:
    texts = rounding(shown="own" if shown else None, verify=FAULTS[fault])
    assert check_draws(texts, SPEC, Sampling(), ALLOWED).p < 1e-9


def test_an_engine_that_does_not_repeat_its_bits_has_an_allowance_of_its_own() -> None:
    texts = rounding("another's", "own")
    assert check_draws(texts, SPEC, Sampling(), Allowance(4, 4)).p > 1e-3
    nothing_shown = rounding("another's", None)
    check = check_draws(nothing_shown, SPEC, Sampling(), Allowance(4, 4))
    assert {test.against: test.slack for test in check.tests} == {"target": 0.5, "baseline": 0.5}


def test_tokens_that_another_engine_may_cut_elsewhere_are_held_against_the_engines_own_alone() -> None:
    sampling = Sampling(top_p=0.9)
    check = check_draws(rounding(), SPEC, sampling, ALLOWED)
    assert {test.against for test in check.tests} == {"own", "baseline"}
    assert check.unshown == "rounding may have reference rule out other tokens"
    exact = check_draws(rounding(), SPEC, sampling)
    assert {test.against for test in exact.tests} == {"target", "own", "baseline"}

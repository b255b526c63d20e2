"""The reference engine at a temperature: coupled speculation is plain sampling, rejection keeps its distribution."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, PairRef, Role, Sampling
from specgate.contract.draws import DrawnTexts
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError, UsageError
from specgate.sampling.rejection import IMPOSSIBLE
from tests.eagle3.reference.test_engine import PROMPTS
from tests.pairs.tiny import write_random_pair
from tests.sampling.small_chains import FAULTS

SPEC = Role(3)
SOURCE = np.random.default_rng(6)
EIGHT = [SOURCE.integers(0, 256, int(n)).tolist() for n in SOURCE.integers(3, 40, 8)]
FLAT = Sampling(temperature=4.0)
"""Flat enough that drafts of an untrained pair are accepted now and then."""
RICH = Sampling(
    temperature=3.0,
    top_k=120,
    top_p=0.95,
    min_p=0.001,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.2,
    logit_bias=((5, -2.0), (77, 3.0)),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    target, draft = write_random_pair(
        tmp_path_factory.mktemp("pair"), seed=1, layers=2, boundaries=(0, 1, 2), draft_vocab=200
    )
    return PairRef("tiny", target, draft)


def opened(
    pair: PairRef, sampling: Sampling | None, *, batch: int = 8, positions: int = 600, drafter: str = "eagle3"
) -> ReferenceEngine:
    options = {"device": "cpu", "drafter": drafter}
    return open_engine(OpenRequest(pair, "float32", batch, positions, 3, False, options, sampling=sampling))


def texts(
    engine: ReferenceEngine, prompts: list[list[int]], role: Role, new_tokens: int
) -> tuple[tuple[int, ...], ...]:
    engine.prefill(prompts, draft=role.speculative)
    return engine.decode(role, Budget(new_tokens=new_tokens), ()).tokens


def accepted(engine: ReferenceEngine, role: Role, new_tokens: int) -> int:
    return sum(max(a, 0) for row in engine.decode(role, Budget(new_tokens=new_tokens), ()).accepted for a in row)


def test_coupled_speculation_emits_plain_samplings_tokens_over_fifteen_hundred(pair: PairRef) -> None:
    engine, compared = opened(pair, FLAT, positions=320), 0
    plain = texts(engine, EIGHT, BASELINE, 130)
    for batch, k, new_tokens in ((8, 3, 130), (4, 2, 75), (2, 1, 75), (1, 3, 75)):
        result = texts(engine, EIGHT[:batch], Role(k), new_tokens)
        assert result == tuple(text[:new_tokens] for text in plain[:batch])
        compared += batch * new_tokens
    assert compared >= 1_500
    assert accepted(engine, SPEC, 100) > 10
    assert len(set(plain[0])) > 50  # no greedy loop


@pytest.mark.parametrize("sampling", [RICH, replace(RICH, temperature=0.0), Sampling(top_p=0.5)])
def test_so_it_does_with_filters_penalties_and_bias(pair: PairRef, sampling: Sampling) -> None:
    engine = opened(pair, sampling)
    assert texts(engine, PROMPTS, SPEC, 30) == texts(engine, PROMPTS, BASELINE, 30)


@pytest.mark.parametrize("method", ["coupled", "rejection"])
def test_a_text_depends_on_its_prompt_and_the_seed_alone(pair: PairRef, method: str) -> None:
    sampling = replace(FLAT, method="rejection" if method == "rejection" else "coupled")
    engine = opened(pair, sampling)
    together = texts(engine, EIGHT, SPEC, 20)
    assert texts(engine, EIGHT[::-1], SPEC, 20) == together[::-1]
    assert texts(engine, EIGHT[2:3], SPEC, 20) == together[2:3]
    assert texts(opened(pair, replace(sampling, seed=1)), EIGHT, SPEC, 20) != together


def test_temperature_0_is_the_greedy_engine(pair: PairRef) -> None:
    greedy = texts(opened(pair, None), PROMPTS, BASELINE, 20)
    for method in ("coupled", "rejection"):
        sampling = Sampling(temperature=0, method="rejection" if method == "rejection" else "coupled")
        assert texts(opened(pair, sampling), PROMPTS, SPEC, 20) == greedy


def test_stand_ins_change_no_token_of_coupled_speculation(pair: PairRef) -> None:
    plain = texts(opened(pair, FLAT), PROMPTS, BASELINE, 20)
    for drafter in ("none", "random"):
        assert texts(opened(pair, FLAT, drafter=drafter), PROMPTS, SPEC, 20) == plain


def test_log_probabilities_are_plain_decodings_bit_for_bit(pair: PairRef) -> None:
    engine = opened(pair, RICH)
    engine.prefill(EIGHT, draft=True)
    plain = engine.log_probabilities(BASELINE, Budget(new_tokens=30))
    assert engine.log_probabilities(SPEC, Budget(new_tokens=30)) == plain
    engine.prefill(EIGHT[:1], draft=False)
    emitted = engine.decode(BASELINE, Budget(new_tokens=30), ()).tokens[0]
    assert [token for token, _ in plain[0]] == list(emitted[1:])
    expected = torch.log_softmax(engine._after(0, emitted[:7]).double(), -1)[emitted[7]]
    assert plain[0][6][1] == pytest.approx(float(expected), abs=1e-5)


def test_the_largest_score_is_the_token_that_is_drawn(pair: PairRef) -> None:
    engine = opened(pair, RICH)
    (tokens,) = texts(engine, PROMPTS[:1], SPEC, 25)
    scores = engine.score(PROMPTS[0], tokens, [0, 1, 9, 24])
    assert [s.best for s in scores] == [tokens[i] for i in (0, 1, 9, 24)]
    assert all(s.logit == s.best_logit for s in scores)
    other = engine.score(PROMPTS[0], (*tokens[:9], (tokens[9] + 1) % 320), [9])[0]
    assert other.best == tokens[9] and IMPOSSIBLE <= other.logit < other.best_logit
    engine.prefill(PROMPTS[:1], draft=False)
    first, second = engine.top2(0, tokens[:9])
    assert first == pytest.approx(scores[2].best_logit, abs=1e-4) and second < first


def drawn(engine: ReferenceEngine, role: Role, draws: int) -> DrawnTexts:
    counts = Counter(engine.draw(role, PROMPTS[0], 4, 10**6 * role.k, draws))
    both = {role.name: tuple(sorted(counts.items()))}
    laws = tuple(engine.distribution(PROMPTS[0], given, 0.1 / draws) for given in often_drawn(both))
    return DrawnTexts("p", tuple(PROMPTS[0]), both, laws, "reference", None, None, (0, 1))


PEAKED = Sampling(temperature=1.5, top_k=12)
"""Few enough tokens that a few thousand draws say something of each beginning."""


@pytest.mark.parametrize("method", ["coupled", "rejection"])
def test_draws_have_the_targets_distribution(pair: PairRef, method: str) -> None:
    sampling = replace(PEAKED, method="rejection" if method == "rejection" else "coupled")
    engine = opened(pair, sampling, batch=64, positions=40)
    for role in (BASELINE, SPEC):
        check = check_draws(drawn(engine, role, 640), role)
        assert check.draws == 640 and len(check.tests) >= 2
        assert check.p > 1e-3, check.worst


@pytest.mark.parametrize("fault", ["verify that is always greedy", "verify that accepts one draft too many"])
def test_draws_of_a_faulty_verify_do_not(pair: PairRef, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults that show whatever the draft is worth: an untrained one hides a forgotten residual."""
    monkeypatch.setattr("specgate.backends.eagle3.reference.sampling.verify_by_rejection", FAULTS[fault])
    engine = opened(pair, replace(PEAKED, method="rejection"), batch=64, positions=40)
    assert check_draws(drawn(engine, SPEC, 320), SPEC).p < 1e-9


def test_a_draw_does_not_depend_on_how_requests_are_grouped(pair: PairRef) -> None:
    wide, narrow = opened(pair, FLAT, batch=8), opened(pair, FLAT, batch=3)
    assert wide.draw(SPEC, PROMPTS[0], 5, 7, 20) == narrow.draw(SPEC, PROMPTS[0], 5, 7, 20)
    assert wide.draw(SPEC, PROMPTS[0], 5, 7, 20)[4:6] == narrow.draw(SPEC, PROMPTS[0], 5, 11, 2)


@pytest.mark.parametrize(
    ("sampling", "drafter", "why"),
    [
        (Sampling(temperature=-1), "eagle3", r"sampling\.temperature = -1"),
        (Sampling(), "oracle", "drafter = oracle with sampling"),
        (Sampling(method="rejection"), "none", "drafter = none"),
    ],
)
def test_what_cannot_be_sampled_is_refused(pair: PairRef, sampling: Sampling, drafter: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        opened(pair, sampling, drafter=drafter)


def test_a_greedy_engine_draws_nothing(pair: PairRef) -> None:
    with pytest.raises(BackendError, match="opened to decode greedily"):
        opened(pair, None).draw(BASELINE, PROMPTS[0], 3, 0, 5)

"""Draws of servers at a temperature, checked with the engines themselves and with the reference engine's logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.backends.eagle3.pairs.shipped import demo_pair
from specgate.contract import BASELINE, Budget, Role, Sampling
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.contract.protocols import DrawsTexts, Engine, OpenRequest, ShowsDistribution
from specgate.plugins import backend
from tests.real.engines import RealEngine

PROMPT = (504, 3232, 3934, 282)
SPEC = Role(3)
DRAWN = Sampling(temperature=0.8, top_p=0.95, top_k=200, method="rejection")
TEXTS = 400


@pytest.fixture(scope="module")
def engine(real: RealEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with real.opened(tmp_path_factory.mktemp(real.name), max_batch=8, sampling=DRAWN) as opened:
        yield opened


def shown(engine: Engine, given: tuple[int, ...] = (), least: float = 1e-4) -> TokenLaw:
    assert isinstance(engine, ShowsDistribution)
    return engine.distribution(PROMPT, given, least)


def test_a_server_shows_what_the_reference_engine_computes(engine: Engine) -> None:
    """But for tokens that end a text, which llama.cpp rules out; after this beginning they are unlikely."""
    request = OpenRequest(demo_pair(), "float32", 1, 64, 0, False, {"device": "cpu"}, sampling=DRAWN)
    reference = shown(backend("reference").open(request), (260,))
    result = shown(engine, (260,))
    assert result.tokens == reference.tokens and len(result.tokens) > 20
    np.testing.assert_allclose(result.probabilities, reference.probabilities, rtol=2e-3)


def test_drawn_texts_fit_what_the_server_shows_in_both_roles(engine: Engine) -> None:
    assert isinstance(engine, DrawsTexts)
    texts = {}
    for turn, role in enumerate((BASELINE, SPEC)):
        counted = Counter(engine.draw(role, PROMPT, 4, turn * TEXTS, TEXTS))
        texts[role.name] = tuple(sorted(counted.items()))
    laws = tuple(shown(engine, given, 0.1 / TEXTS) for given in often_drawn(texts))
    drawn = DrawnTexts("p", PROMPT, texts, laws, "itself", None, None, (0, 1))
    for role in (BASELINE, SPEC):
        check = check_draws(drawn, role)
        assert check.tests and check.p > 1e-6, check.worst


def test_a_block_at_a_temperature_keeps_its_accounts(engine: Engine) -> None:
    engine.prefill([PROMPT, (*PROMPT, 260)], draft=True)
    first, second = (engine.decode(BASELINE, Budget(new_tokens=24), ()) for _ in range(2))
    assert first.tokens == second.tokens, "seeds repeat a text"
    spec = engine.decode(SPEC, Budget(new_tokens=24), ())
    assert spec.served is not None and spec.served.acceptance is not None
    spec.served.acceptance.check()
    assert 1 <= (spec.served.acceptance.acceptance_length or 0) < 4


def test_requests_have_seeds_of_their_own_and_repeat_their_texts(engine: Engine) -> None:
    assert isinstance(engine, DrawsTexts)
    texts = engine.draw(BASELINE, PROMPT, 8, 0, 4)
    assert len(set(texts)) > 1 and engine.draw(BASELINE, PROMPT, 8, 0, 4) == texts

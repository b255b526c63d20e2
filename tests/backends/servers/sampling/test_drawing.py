"""Servers that draw: texts, the distribution that they show, and what the gate `distribution` makes of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.contract import BASELINE, FORBIDS_ENDS, OWN_NUMBERS, Budget, Role, Rule, Sampling, State
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.contract.protocols import DrawsTexts, Engine, ShowsDistribution
from specgate.errors import BackendError
from specgate.gates.sampled.distribution import GATE
from tests.backends.servers.helpers import ENGINES, drawing, started
from tests.backends.servers.stub.engine import END, HALF, TOKENS
from tests.backends.servers.stub.sampling import law
from tests.support.factories import blocks_of, plan_of, run_of, scenario

pytestmark = pytest.mark.slow("starts two servers per test")

PROMPT = (1, 2, 3)
SPEC = Role(3)
DRAWN = Sampling(temperature=0.8, method="rejection")
TEXTS = 300
SHOWN = ("vllm", "sglang", "llamacpp")
"""The engines whose requests are answered with log-probabilities of the model's own. Of the others, speculation is held
against the baseline's draws alone.
"""
RULE = Rule("drawn", "distribution", True, params={"alpha": 1e-6, "min_draws": float(TEXTS)})


def texts_of(engine: Engine, role: Role, first: int, count: int = TEXTS) -> Counter[tuple[int, ...]]:
    assert isinstance(engine, DrawsTexts)
    texts = engine.draw(role, PROMPT, 4, first, count)
    assert len(texts) == count and {len(text) for text in texts} == {4}
    return Counter(texts)


def drawn_from(engine: Engine) -> DrawnTexts:
    """As `run.drawing` asks for it."""
    counted = {role.name: texts_of(engine, role, turn * TEXTS) for turn, role in enumerate((BASELINE, SPEC))}
    texts = {name: tuple(sorted(result.items())) for name, result in counted.items()}
    laws: tuple[TokenLaw, ...] = ()
    if engine.facts().backend in SHOWN:
        assert isinstance(engine, ShowsDistribution)
        laws = tuple(engine.distribution(PROMPT, given, 0.1 / TEXTS) for given in often_drawn(texts))
    return DrawnTexts("p", PROMPT, texts, laws, "itself" if laws else None, None, None, (0, 1))


def states(drawn: DrawnTexts) -> list[State]:
    """The gate's verdicts on the baseline and the spec cell."""
    plan = plan_of(replace(scenario(), sampling=DRAWN))
    run = run_of(plan, blocks_of(plan))
    checks = {c.cell.key: check_draws(drawn, c.cell.role) for c in run.cells}
    return [v.state for v in GATE.judge(RULE, replace(run, draws=checks))]


@pytest.mark.parametrize("name", ENGINES)
def test_a_server_that_samples_rightly_passes(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with drawing(tmp_path, pair, name, DRAWN, "--draws", "--rate", "1e6", max_batch=8) as engine:
        drawn = drawn_from(engine)
        details = engine.facts().details
    assert states(drawn) == [State.PASS if name in SHOWN else State.SKIPPED, State.PASS]
    assert str(details[OWN_NUMBERS]).endswith("no seed") == (name in ("sglang", "lmdeploy"))
    assert (FORBIDS_ENDS in details) == (name in ("llamacpp", "lmdeploy"))


@pytest.mark.parametrize("name", ["vllm", "lmdeploy"])  # held against what it shows, and against its baseline's draws
def test_a_server_whose_verify_is_always_greedy_is_rejected(name: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = "--draws", "--rate", "1e6", "--fault", "greedy_verify"
    with drawing(tmp_path, pair, name, DRAWN, *arguments, max_batch=8) as engine:
        baseline, spec = states(drawn_from(engine))
    assert baseline in (State.PASS, State.SKIPPED) and spec is State.INVALID


def test_a_server_is_asked_for_its_own_log_probabilities_and_the_settings_are_applied_here(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with drawing(tmp_path, pair, "vllm", DRAWN, "--draws") as engine:
        assert isinstance(engine, ShowsDistribution)
        shown = engine.distribution(PROMPT, (20,), 0.01)
    expected = law(20, DRAWN.temperature)
    likely = [token for token, p in zip(TOKENS, expected, strict=True) if p >= 0.01]
    assert shown.given == (20,) and list(shown.tokens) == likely
    np.testing.assert_allclose(shown.probabilities, expected[expected >= 0.01], rtol=1e-9)


def test_tokens_that_a_server_rules_out_are_ruled_out_of_what_it_shows(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with drawing(tmp_path, pair, "llamacpp", DRAWN, "--draws") as engine:
        assert isinstance(engine, ShowsDistribution)
        shown = engine.distribution(PROMPT, (20,), 0.0)
    assert END not in shown.tokens and sum(shown.probabilities) == pytest.approx(1)
    np.testing.assert_allclose(shown.probabilities, law(20, DRAWN.temperature, [END])[:-1], rtol=1e-9)


def test_a_block_at_a_temperature_has_acceptance_and_repeats_by_its_seeds(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with drawing(tmp_path, pair, "vllm", DRAWN, "--draws") as engine:
        engine.prefill([PROMPT, (4, 5)], draft=True)
        first, second = (engine.decode(SPEC, Budget(steps=30), ()) for _ in range(2))
        baseline = engine.decode(BASELINE, Budget(steps=30), ())
    assert first.tokens == second.tokens != baseline.tokens
    assert first.served is not None and first.served.acceptance is not None
    first.served.acceptance.check()
    assert 1.2 < (first.served.acceptance.acceptance_length or 0) < 4


def test_a_request_whose_stream_leaves_out_ids_is_drawn_again_with_another_seed(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """llama.cpp b11434 streams no id of a token whose text ends in the middle of a character."""
    with drawing(tmp_path, pair, "llamacpp", DRAWN, "--draws", max_batch=4) as engine:
        engine.prefill([(n, n + 1) for n in range(1, 5)], draft=True)
        block = engine.decode(BASELINE, Budget(steps=12), ())
        assert isinstance(engine, DrawsTexts)
        texts = engine.draw(BASELINE, PROMPT, 12, 0, 50)
    assert all(len(text) == 13 and HALF not in text for text in block.tokens)
    assert block.counters["asked_again"] >= 1
    assert any(HALF in text for text in texts), "drawn texts come in one piece, with all ids"


def test_an_engine_that_was_opened_to_decode_greedily_draws_nothing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, "vllm") as engine:
        assert isinstance(engine, DrawsTexts) and isinstance(engine, ShowsDistribution)
        with pytest.raises(BackendError, match="opened to decode greedily"):
            engine.draw(BASELINE, PROMPT, 4, 0, 2)
        with pytest.raises(BackendError, match="opened to decode greedily"):
            engine.distribution(PROMPT, (), 0.1)
        assert OWN_NUMBERS not in engine.facts().details


def test_a_server_that_lists_too_few_tokens_says_so(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with drawing(tmp_path, pair, "vllm", DRAWN) as engine:  # the stub's script lists two tokens
        assert isinstance(engine, ShowsDistribution)
        with pytest.raises(BackendError, match="2 of 320 tokens are listed, which leave open a distance"):
            engine.distribution(PROMPT, (), 0.1)

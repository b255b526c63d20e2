"""The back end of docs/examples: what the protocol asks, asked of it directly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract import BASELINE, AcceptanceRecord, Budget, PairRef, Role
from specgate.contract.protocols import Backend, OpenRequest
from specgate.errors import BackendError, UsageError
from tests.support.example_packages import module_of

BACKEND = module_of("backend").BACKEND
REQUEST = OpenRequest(
    PairRef("any", Path("target"), Path("draft")), "float32", max_batch=2, max_positions=64, max_k=3, perf_mode=False
)
PROMPTS = ((1, 2, 3), (4, 5))


def test_it_keeps_the_protocol_and_is_no_default() -> None:
    assert isinstance(BACKEND, Backend)
    assert BACKEND.available().usable and BACKEND.available().rank < 0


def test_an_option_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="option x: not known"):
        BACKEND.open(replace(REQUEST, options={"x": "1"}))


def test_decoding_needs_a_prefill() -> None:
    with pytest.raises(BackendError, match="before prefill"):
        BACKEND.open(REQUEST).decode(BASELINE, Budget(steps=1), ())


@pytest.mark.parametrize("budget", [Budget(steps=6), Budget(new_tokens=17)], ids=["steps", "tokens"])
def test_every_role_writes_the_baselines_tokens_from_the_same_state(budget: Budget) -> None:
    engine = BACKEND.open(REQUEST)
    engine.prefill(PROMPTS, draft=True)
    baseline = engine.decode(BASELINE, budget, ())
    spec = engine.decode(Role(3), budget, ())
    assert engine.decode(BASELINE, budget, ()).tokens == baseline.tokens
    for short, long in zip(baseline.tokens, spec.tokens, strict=True):
        assert long[: len(short)] == short


@pytest.mark.parametrize("budget", [Budget(steps=6), Budget(new_tokens=17)], ids=["steps", "tokens"])
def test_its_counts_add_up_to_its_tokens(budget: Budget) -> None:
    engine = BACKEND.open(REQUEST)
    engine.prefill(PROMPTS, draft=True)
    made = engine.decode(Role(3), budget, ())
    emitted = sum(len(tokens) - 1 for tokens in made.tokens)
    AcceptanceRecord.from_steps(3, made.accepted, made.drafted, emitted, sum(made.truncated)).check()
    assert made.elapsed_ns == sum(made.step_ns) and len(made.step_ns) == len(made.accepted)

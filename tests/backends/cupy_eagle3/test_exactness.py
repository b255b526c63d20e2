"""Bit-exact speculation on a GPU, and how near its logits are to float32."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.backends.cupy_eagle3.stretch import StopRule
from specgate.backends.reference.engine import ReferenceEngine
from specgate.core import BASELINE, Budget, Role
from tests.backends.cupy_eagle3.gpu_pairs import (
    GEOMETRIES,
    RAGGED,
    SIZES,
    checkpoints,
    checkpoints_of,
    engine,
    engine_of,
    random_prompts,
    shape,
)
from tests.backends.cupy_eagle3.tracing import nearness, same_prefixes, tokens, trace

pytestmark = pytest.mark.gpu

STEPS = 24


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_tokens_and_logits_of_every_draft_length_equal_the_baselines_bit_for_bit(
    name: str, recipe: str, batch: int
) -> None:
    made = engine(name, recipe)
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    rule = StopRule((), (), SIZES.positions)
    plain = trace(made, 0, STEPS * 3, rule)
    baseline, accepted = tokens(made, 0, Budget(steps=STEPS * 3)), 0
    for k in (1, 2, 3, 4, 5):
        got = trace(made, k, STEPS, rule)
        common = [at for at in got if at in plain]
        assert len(common) >= STEPS * batch
        assert all(torch.equal(got[at], plain[at]) for at in common)
        block = made.decode(Role(k), Budget(steps=STEPS), ())
        assert same_prefixes(block.tokens, baseline)
        accepted += sum(a for row in block.accepted for a in row)
    assert accepted > STEPS  # else nothing but the first row was ever compared


def test_slots_that_end_leave_the_others_bits_alone() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    free_run = tokens(made, 0, Budget(steps=60))
    # Stop ids that some slots meet early and some never.
    stop = sorted({text[3 + 4 * slot] for slot, text in enumerate(free_run[:5])})
    budget = Budget(new_tokens=50, ignore_eos=False)
    baseline = made.decode(BASELINE, budget, stop)
    assert len({len(t) for t in baseline.tokens}) > 2
    assert same_prefixes(baseline.tokens, free_run)
    assert all((t[-1] in stop) == (f == "stop") for t, f in zip(baseline.tokens, baseline.finish, strict=True))
    rule = StopRule((), tuple(stop), 50)
    plain = trace(made, 0, 50, rule)
    for k in (1, 3, 5):
        block = made.decode(Role(k), budget, stop)
        assert (block.tokens, block.finish) == (baseline.tokens, baseline.finish)
        got = trace(made, k, 50, rule)
        assert all(torch.equal(got[at], plain[at]) for at in got if at in plain)
        counts = [sum(a >= 0 for a in row) for row in block.accepted]
        assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] > 0


def test_a_long_context_is_bit_exact_too() -> None:
    made = engine_of(*checkpoints(shape(8, 2, 128)), Sizes(slots=2, positions=33400, max_rows=6))
    made.prefill(random_prompts([32768, 16384 + 7]), draft=True)
    baseline, rule = tokens(made, 0, Budget(steps=60)), StopRule((), (), 33000)
    plain = trace(made, 0, 60, rule)
    for k in (1, 2, 3, 4, 5):
        assert same_prefixes(tokens(made, k, Budget(steps=20)), baseline)
        got = trace(made, k, 20, rule)
        assert all(torch.equal(got[at], plain[at]) for at in got if at in plain)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
def test_logits_and_drafts_are_nearer_to_the_float32_reference_than_torch_is_in_bfloat16(
    name: str, recipe: str
) -> None:
    made, prompts = engine(name, recipe), random_prompts([300, 70])
    exact, rounded = (
        ReferenceEngine(*checkpoints_of(name, recipe, dtype), max_batch=2, max_positions=1024, device="cuda")
        for dtype in (torch.float32, torch.bfloat16)
    )
    ours, torchs = nearness(made, exact, rounded, prompts, 40)
    print(f"{name}, recipe {recipe}: {ours}; torch in bfloat16: {torchs}")
    assert ours.pooled >= 0.9999
    assert ours.pooled > torchs.pooled and ours.least > torchs.least
    accepted, expected = (sum(map(sum, e.decode(Role(3), Budget(steps=40), ()).accepted)) for e in (made, exact))
    assert accepted == pytest.approx(expected, rel=0.1) and accepted > 100

"""A planted gpt-oss in the engine on a GPU: against the reference, and every draft length against the baseline."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import BASELINE, Budget, Role
from tests.eagle3.cupy.engine.tracing import (
    NEAR_TIE,
    accepted_of,
    check_speculation,
    divergences,
    nearness,
    tokens,
    trace,
)
from tests.eagle3.cupy.gpu_pairs import (
    RAGGED,
    RECIPE_EXPERTS,
    SIZES,
    checkpoints,
    engine_of,
    expert_engine,
    expert_pair,
    modes_on_gpu,
    random_prompts,
)

pytestmark = pytest.mark.gpu

STEPS = 24


def oracle(dtype: torch.dtype) -> ReferenceEngine:
    return ReferenceEngine(
        *checkpoints(expert_pair(), RECIPE_EXPERTS, dtype), max_batch=8, max_positions=1024, device="cuda"
    )


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_tokens_and_logits_of_every_draft_length_equal_the_baselines_bit_for_bit(batch: int) -> None:
    made = expert_engine()
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    accepted = accepted_of(check_speculation(made, range(1, 8), STEPS, 4 * STEPS))
    assert accepted > STEPS  # else nothing but the first row was ever compared


def test_a_slots_bits_do_not_depend_on_the_slots_beside_it() -> None:
    made, prompts = expert_engine(), random_prompts([700, 31, 33, 64])
    rule = StopRule((), (), SIZES.positions)
    made.prefill(prompts, draft=False)
    together = trace(made, 0, STEPS, rule)
    for slot, prompt in enumerate(prompts):
        made.prefill([prompt], draft=False)
        alone = trace(made, 0, STEPS, rule)
        assert all(torch.equal(logits, together[slot, at]) for (_, at), logits in alone.items())


def test_steps_without_graphs_give_the_same_tokens() -> None:
    single = engine_of(*checkpoints(expert_pair(), RECIPE_EXPERTS), SIZES, graphs=False)
    prompts = random_prompts([40, 90])
    texts = []
    for made in (single, expert_engine()):
        made.prefill(prompts, draft=True)
        texts.append([tokens(made, k, Budget(steps=STEPS)) for k in (0, 3)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["grouped", "one by one", "packed", "wgmma", "torch"])
def test_tokens_are_the_float32_references_but_for_near_ties(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the prompts are prefilled."""
    made, exact, prompts = expert_engine(), oracle(torch.float32), random_prompts(RAGGED)
    monkeypatch.setattr(made, "mode", modes_on_gpu()[name])
    for engine in (made, exact):
        engine.prefill(prompts, draft=True)
    ours, theirs = (engine.decode(BASELINE, Budget(steps=40), ()).tokens for engine in (made, exact))
    parted = divergences(ours, theirs, exact)
    assert max((one.gap for one in parted), default=0.0) <= NEAR_TIE, parted
    assert sum(len(ours[0]) - one.at for one in parted) <= len(ours) * len(ours[0]) // 2


def test_logits_are_nearer_to_the_float32_reference_than_torch_is_in_bfloat16() -> None:
    exact, rounded = oracle(torch.float32), oracle(torch.bfloat16)
    ours, torchs = nearness(expert_engine(), exact, rounded, random_prompts([300, 70]), 40)
    print(f"{ours}; torch in bfloat16: {torchs}")
    assert ours.pooled >= 0.999
    assert ours.pooled > torchs.pooled


@pytest.mark.parametrize("k", [0, 3])
def test_the_experts_that_steps_touch_are_counted_as_the_reference_counts_them(k: int) -> None:
    """A planted token chooses its experts by itself, whatever the dtype."""
    made, exact, prompts = expert_engine(), oracle(torch.float32), random_prompts([40, 700])
    counts = []
    for engine in (made, exact):
        engine.prefill(prompts, draft=True)
        decoded = engine.decode(Role(k), Budget(steps=1), ())
        assert decoded.experts is not None
        counts.append((decoded.tokens, decoded.experts.touched))
    assert counts[0] == counts[1]


def test_tiles_of_sliding_layers_are_those_of_their_windows() -> None:
    made = expert_engine()
    made.prefill(random_prompts([1500]), draft=False)
    tiles = made.attention_tiles(BASELINE)
    # Two of four layers see everything, 47 tiles of 32 keys in each of two heads; two see a window of 32, in two tiles.
    assert tiles["executed"] == 2 * (2 * 47 + 2 * 2)

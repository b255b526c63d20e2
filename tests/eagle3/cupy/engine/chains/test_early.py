"""Chains that end early on a GPU: the baseline's tokens and logits, bit for bit, and counts that say where they end."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.engine import CupyEngine
from specgate.backends.eagle3.lib.chains.lengths import ChainLengths
from specgate.backends.eagle3.lib.chains.table import table_of
from specgate.contract import Budget, Role
from specgate.contract.protocols import Decoded
from tests.eagle3.cupy.engine.tracing import same_prefixes, tokens, trace
from tests.eagle3.cupy.gpu_pairs import (
    GEOMETRIES,
    RAGGED,
    SIZES,
    checkpoints_of,
    engine,
    engine_of,
    random_prompts,
)

pytestmark = pytest.mark.gpu

STEPS = 24
NEVER, ALWAYS = 1e-30, 2.0
"""Confidences below and above every product of probabilities, that of a draft that is certain of its tokens, too."""
SOFTER = 0.3125
"""The draft of recipe A is certain of every token. With its logits multiplied by this, its probabilities are spread
from 0.3 to 0.9.
"""


def unsure_engine_of(name: str, recipe: str, lengths: ChainLengths, times: float) -> CupyEngine:
    """The draft's logits are multiplied by `times`."""
    target, draft = checkpoints_of(name, recipe, torch.bfloat16)
    draft.tensors["lm_head.weight"].mul_(times)
    made = engine_of(target, draft, replace(SIZES, confidence=lengths.confidence))
    made.lengths = lengths
    return made


@cache
def unsure_engine(name: str, confidence: float, recipe: str = "A", times: float = SOFTER) -> CupyEngine:
    return unsure_engine_of(name, recipe, ChainLengths(confidence), times)


def drafted(block: Decoded) -> list[int]:
    return [d for row in block.drafted for d in row if d >= 0]


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("confidence", [0.3, 0.7])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 6, 7, 8])
def test_tokens_and_logits_equal_the_baselines_bit_for_bit(name: str, confidence: float, batch: int) -> None:
    made = unsure_engine(name, confidence)
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    rule = StopRule((), (), SIZES.positions)
    plain, baseline = trace(made, 0, STEPS * 3, rule), tokens(made, 0, Budget(steps=STEPS * 3))
    lengths = set[int]()
    for k in (3, 5):
        got = trace(made, k, STEPS, rule)
        common = [at for at in got if at in plain]
        assert len(common) >= STEPS * batch
        assert all(torch.equal(got[at], plain[at]) for at in common)
        block = made.decode(Role(k), Budget(steps=STEPS), ())
        assert same_prefixes(block.tokens, baseline)
        counts = drafted(block)
        assert all(1 <= d <= k for d in counts) and len(counts) == STEPS * batch
        assert all(a <= d for row in zip(block.accepted, block.drafted, strict=True) for a, d in zip(*row, strict=True))
        assert block.counters["chains_ended_early"] == sum(d < k for d in counts)
        lengths |= {*counts}
    assert len(lengths) > 1


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
def test_a_confidence_below_every_product_gives_whole_chains_and_one_above_it_single_tokens(
    name: str, recipe: str
) -> None:
    plain, whole, single = engine(name, recipe), *(unsure_engine(name, p, recipe, 1.0) for p in (NEVER, ALWAYS))
    for made in (plain, whole, single):
        made.prefill(random_prompts(RAGGED), draft=True)
    for made, k in ((whole, 5), (single, 1)):
        want, block = plain.decode(Role(k), Budget(steps=STEPS), ()), made.decode(Role(5), Budget(steps=STEPS), ())
        assert (block.tokens, block.accepted, block.drafted) == (want.tokens, want.accepted, want.drafted)
        assert block.counters["chains_ended_early"] == (0 if k == 5 else STEPS * len(RAGGED))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_where_a_slots_chains_end_does_not_depend_on_who_shares_its_steps(name: str) -> None:
    made, prompts = unsure_engine(name, 0.5), random_prompts(RAGGED)
    made.prefill(prompts, draft=True)
    together = made.decode(Role(5), Budget(steps=STEPS), ())
    for slot in (0, 3, 6):
        made.prefill([prompts[slot]], draft=True)
        alone = made.decode(Role(5), Budget(steps=STEPS), ())
        assert [row[0] for row in alone.drafted] == [row[slot] for row in together.drafted]
        assert alone.tokens[0] == together.tokens[slot]


def test_slots_that_end_leave_the_others_bits_alone() -> None:
    made = unsure_engine("4:1 of 64", 0.5)
    made.prefill(random_prompts(RAGGED), draft=True)
    baseline = made.decode(Role(0), Budget(new_tokens=50), ())
    block = made.decode(Role(5), Budget(new_tokens=50), ())
    assert (block.tokens, block.finish) == (baseline.tokens, baseline.finish)
    assert "chains_ended_early" not in baseline.counters


def test_logits_that_are_shown_are_the_baselines() -> None:
    made = unsure_engine("4:1 of 64", 0.5)
    made.prefill(random_prompts(RAGGED), draft=True)
    at = (1, 5, 17, 30)
    assert made.logits(Role(5), at) == made.logits(Role(0), at)


def test_the_number_of_requests_picks_the_chain_of_a_decode_run() -> None:
    """Each shorter chain is the shorter role's own: the same tokens, counts and logits."""
    made, plain = engine_of(*checkpoints_of("4:1 of 64", "A", torch.bfloat16), SIZES), engine("4:1 of 64")
    made.lengths = ChainLengths(table=table_of("1:5,2:3,4:1", "here"))
    for batch, k in ((1, 5), (2, 3), (3, 3), (4, 1), (8, 1)):
        for each in (made, plain):
            each.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
        block, want = made.decode(Role(5), Budget(steps=STEPS), ()), plain.decode(Role(k), Budget(steps=STEPS), ())
        assert (block.tokens, block.accepted, block.drafted) == (want.tokens, want.accepted, want.drafted)
        assert block.counters["chains_ended_early"] == (STEPS * batch if k < 5 else 0)
        assert made.logits(Role(5), (1, 9)) == plain.logits(Role(k), (1, 9)) == plain.logits(Role(0), (1, 9))
    shorter = made.decode(Role(1), Budget(steps=STEPS), ())
    assert {*drafted(shorter)} == {1} and shorter.counters["chains_ended_early"] == 0


def test_a_confidence_and_a_table_hold_together() -> None:
    made = unsure_engine_of("4:1 of 64", "A", ChainLengths(0.5, table_of("1:5,2:3", "here")), SOFTER)
    made.prefill(random_prompts(RAGGED), draft=True)
    block = made.decode(Role(5), Budget(steps=STEPS), ())
    assert {*drafted(block)} <= {1, 2, 3} and block.counters["chains_ended_early"] == STEPS * len(RAGGED)
    assert same_prefixes(block.tokens, tokens(made, 0, Budget(steps=STEPS * 4)))

"""Trees on a GPU: the baseline's tokens from the baseline's logits, bit for bit, and what a chain accepts at least."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from specgate.backends.cupy_eagle3.engine.decode_run import StopRule
from specgate.backends.cupy_eagle3.engine.engine import CupyEngine
from specgate.core import Budget, Role
from specgate.eagle3.trees.shape import TreeShape
from tests.backends.cupy_eagle3.engine.tracing import same_prefixes, tokens, trace
from tests.backends.cupy_eagle3.gpu_pairs import (
    GEOMETRIES,
    RAGGED,
    SIZES,
    checkpoints_of,
    engine,
    engine_of,
    random_prompts,
)
from tests.backends.cupy_eagle3.kernels.trees.random_trees import random_shape

pytestmark = pytest.mark.gpu

STEPS = 24
EAGLE = TreeShape.of(
    [(0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0)]
)
SHAPES = {"12 nodes": EAGLE, "31 nodes": random_shape(random.Random(0), 31, 5)}
"""At batch 8, 31 nodes are as many rows as a step may have."""


@cache
def tree_engine(name: str, shape: str) -> CupyEngine:
    tree = SHAPES[shape]
    return engine_of(*checkpoints_of(name, "A", torch.bfloat16), replace(SIZES, max_rows=tree.rows, tree=tree))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_tokens_and_logits_of_a_tree_equal_the_baselines_bit_for_bit(name: str, shape: str, batch: int) -> None:
    made, accepted = tree_engine(name, shape), 0
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    rule = StopRule((), (), SIZES.positions)
    plain, baseline = trace(made, 0, STEPS * 3, rule), tokens(made, 0, Budget(steps=STEPS * 3))
    for k in (1, 2, SHAPES[shape].depth):
        got = trace(made, k, STEPS, rule)
        common = [at for at in got if at in plain]
        assert len(common) >= STEPS * batch
        assert all(torch.equal(got[at], plain[at]) for at in common)
        block = made.decode(Role(k), Budget(steps=STEPS), ())
        assert same_prefixes(block.tokens, baseline)
        assert block.counters["mask_checked_steps"] == STEPS and not block.counters["mask_integrity_failures"]
        assert block.counters["tree_tokens"] == SHAPES[shape].first_levels(k).nodes * STEPS * batch
        accepted += sum(a for row in block.accepted for a in row)
    assert accepted > STEPS


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_first_step_accepts_what_a_chain_of_as_many_levels_does_at_least(name: str) -> None:
    """The tree has the chain's tokens, and others. Later steps begin at other places."""
    accepted = []
    for made in (engine(name, "A"), tree_engine(name, "12 nodes")):
        made.prefill(random_prompts(RAGGED), draft=True)
        accepted.append(made.decode(Role(EAGLE.depth), Budget(steps=1), ()).accepted[0])
    assert all(tree >= chain for chain, tree in zip(*accepted, strict=True)) and any(accepted[0])


def test_slots_that_end_within_a_tree_leave_the_others_bits_alone() -> None:
    made = tree_engine("4:1 of 64", "12 nodes")
    made.prefill(random_prompts(RAGGED), draft=True)
    baseline = made.decode(Role(0), Budget(new_tokens=50), ())
    block = made.decode(Role(EAGLE.depth), Budget(new_tokens=50), ())
    assert (block.tokens, block.finish) == (baseline.tokens, baseline.finish)


def test_logits_that_are_shown_are_those_of_the_accepted_path() -> None:
    made = tree_engine("4:1 of 64", "12 nodes")
    made.prefill(random_prompts(RAGGED), draft=True)
    at = (1, 5, 17, 30)
    assert made.logits(Role(EAGLE.depth), at) == made.logits(Role(0), at)

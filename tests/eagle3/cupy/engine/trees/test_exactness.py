"""Trees on a GPU: the baseline's tokens from the baseline's logits, bit for bit, and what a chain accepts at least."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import MOST_ROWS
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.contract import Budget, Role, Sampling
from specgate.contract.protocols import Decoded
from tests.eagle3.cupy.engine.tracing import accepted_of, check_speculation, same_prefixes, tokens
from tests.eagle3.cupy.gpu_pairs import (
    CHUNK,
    GEOMETRIES,
    RAGGED,
    RECIPE_EXPERTS,
    SIZES,
    checkpoints,
    checkpoints_of,
    engine,
    engine_of,
    expert_pair,
    random_prompts,
)
from tests.eagle3.cupy.kernels.trees.random_trees import random_shape

pytestmark = pytest.mark.gpu

STEPS = 24
EAGLE = TreeShape.of(
    [(0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0)]
)
SHAPES: dict[str, DraftTree] = {
    "12 nodes": EAGLE,
    "31 nodes": random_shape(random.Random(0), 31, 5),
    "dynamic, 12 nodes": DynamicGrowth(4, 10, 12),
    "dynamic, 31 nodes": DynamicGrowth(5, 6, 31),
}
"""At batch 8, 31 nodes are as many rows as a step may have."""


@cache
def tree_engine(name: str, shape: str) -> CupyEngine:
    tree = SHAPES[shape]
    return engine_of(*checkpoints_of(name, "A", torch.bfloat16), replace(SIZES, max_rows=tree.rows, tree=tree))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8])
def test_tokens_and_logits_of_a_tree_equal_the_baselines_bit_for_bit(name: str, shape: str, batch: int) -> None:
    made, ks = tree_engine(name, shape), (1, 2, SHAPES[shape].depth)
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    blocks = check_speculation(made, ks, STEPS, spans=True)
    check_masks(blocks)
    for k, block in zip(ks, blocks, strict=True):
        assert block.counters["tree_tokens"] == SHAPES[shape].first_levels(k).nodes * STEPS * batch
    assert accepted_of(blocks) > STEPS


def check_masks(blocks: Sequence[Decoded]) -> None:
    assert {block.counters["mask_checked_steps"] for block in blocks} == {STEPS}
    assert not any(block.counters["mask_integrity_failures"] for block in blocks)


FP8, NVFP4 = KvModes("fp8", "fp8"), KvModes("nvfp4", "nvfp4")
COMBINED = {
    "gpt-oss": ("gpt-oss", AS_COMPUTED),
    "gpt-oss, fp8": ("gpt-oss", FP8),
    "gpt-oss, target fp8": ("gpt-oss", KvModes("fp8")),
    "3:1 of 64, fp8": ("3:1 of 64", FP8),
    "8:1 of 128, draft fp8": ("8:1 of 128", KvModes(None, "fp8")),
    "8:1 of 128, fp8": ("8:1 of 128", FP8),
    "gpt-oss, nvfp4": ("gpt-oss", NVFP4),
    "3:1 of 64, nvfp4": ("3:1 of 64", NVFP4),
    "8:1 of 128, target nvfp4": ("8:1 of 128", KvModes("nvfp4")),
    "8:1 of 128, fp8 and draft nvfp4": ("8:1 of 128", KvModes("fp8", "nvfp4")),
    "8:1 of 128, nvfp4": ("8:1 of 128", NVFP4),
}
"""Targets and formats of their caches."""


def combined_engine(kind: str, shape: str, sampling: Sampling | None = None) -> CupyEngine:
    """Of a tree, and of as many slots as a mixture may have."""
    tree, (name, kv) = SHAPES[shape], COMBINED.get(kind, (kind, AS_COMPUTED))
    pair = (
        checkpoints(expert_pair(), RECIPE_EXPERTS) if name == "gpt-oss" else checkpoints_of(name, "A", torch.bfloat16)
    )
    slots = min(4, MOST_ROWS // tree.rows)
    return engine_of(*pair, replace(SIZES, slots=slots, max_rows=tree.rows, tree=tree, kv=kv, sampling=sampling))


@pytest.mark.parametrize("kind", COMBINED)
@pytest.mark.parametrize("shape", ["12 nodes", "dynamic, 31 nodes"])
def test_trees_go_with_experts_windows_sinks_and_caches_of_codes_bit_for_bit(kind: str, shape: str) -> None:
    """Behind prompts that end at the edges of blocks, chunks and windows."""
    made, blocks = combined_engine(kind, shape), list[Decoded]()
    slots = made.sizes.slots
    for lengths in ([31, 33, 64, 700][-slots:], [CHUNK - 2]):
        made.prefill(random_prompts(lengths, seed=len(lengths)), draft=True)
        blocks += check_speculation(made, (2, SHAPES[shape].depth), STEPS)
    check_masks(blocks)
    assert accepted_of(blocks) > STEPS


SAMPLED = {
    "temperature": Sampling(temperature=0.8),
    "everything": Sampling(temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.3),
}


@pytest.mark.parametrize("sampling", SAMPLED)
@pytest.mark.parametrize("kind", ["4:1 of 64", "gpt-oss, fp8", "gpt-oss, nvfp4"])
@pytest.mark.parametrize("shape", ["12 nodes", "dynamic, 31 nodes"])
def test_trees_emit_what_plain_sampling_draws_from_the_same_logits(sampling: str, kind: str, shape: str) -> None:
    """Each node is drawn for its depth, and counts the tokens of its own path."""
    made = combined_engine(kind, shape, SAMPLED[sampling])
    slots = made.sizes.slots
    made.prefill(random_prompts([31, 33, 64, 700][-slots:], seed=slots), draft=True)
    blocks = check_speculation(made, (1, 2, SHAPES[shape].depth), STEPS)
    check_masks(blocks)
    assert accepted_of(blocks) > 0


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_first_step_accepts_what_a_chain_of_as_many_levels_does_at_least(name: str) -> None:
    """The tree has the chain's tokens, and others. Later steps begin at other places."""
    accepted = []
    for made in (engine(name, "A"), tree_engine(name, "12 nodes")):
        made.prefill(random_prompts(RAGGED), draft=True)
        accepted.append(made.decode(Role(EAGLE.depth), Budget(steps=1), ()).accepted[0])
    assert all(tree >= chain for chain, tree in zip(*accepted, strict=True)) and any(accepted[0])


@pytest.mark.parametrize("shape", ["12 nodes", "dynamic, 12 nodes"])
def test_slots_that_end_within_a_tree_leave_the_others_bits_alone(shape: str) -> None:
    made = tree_engine("4:1 of 64", shape)
    made.prefill(random_prompts(RAGGED), draft=True)
    baseline = made.decode(Role(0), Budget(new_tokens=50), ())
    block = made.decode(Role(SHAPES[shape].depth), Budget(new_tokens=50), ())
    assert (block.tokens, block.finish) == (baseline.tokens, baseline.finish)


@pytest.mark.parametrize("shape", ["12 nodes", "dynamic, 12 nodes"])
def test_logits_that_are_shown_are_those_of_the_accepted_path(shape: str) -> None:
    made = tree_engine("4:1 of 64", shape)
    made.prefill(random_prompts(RAGGED), draft=True)
    at = (1, 5, 17, 30)
    assert made.logits(Role(SHAPES[shape].depth), at) == made.logits(Role(0), at)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_dynamic_tree_of_one_branch_has_the_chains_tokens_and_counts(name: str) -> None:
    growth, results = DynamicGrowth(4, 1, 4), list[Any]()
    pair = checkpoints_of(name, "A", torch.bfloat16)
    for made in (engine(name, "A"), engine_of(*pair, replace(SIZES, max_rows=growth.rows, tree=growth))):
        made.prefill(random_prompts(RAGGED), draft=True)
        results.append(made.decode(Role(4), Budget(steps=STEPS), ()))
    chain, tree = results
    assert (tree.tokens, tree.accepted, tree.drafted, tree.finish) == (
        *(chain.tokens, chain.accepted),
        *(chain.drafted, chain.finish),
    )


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_widest_dynamic_trees_emit_the_baselines_tokens(name: str) -> None:
    """As many nodes, levels, and rows on which the draft runs, as a step may have."""
    for growth in (DynamicGrowth(7, 10, 63), DynamicGrowth(3, 32, 63), DynamicGrowth(2, 60, 63)):
        made = engine_of(
            *checkpoints_of(name, "A", torch.bfloat16), replace(SIZES, slots=4, max_rows=growth.rows, tree=growth)
        )
        made.prefill(random_prompts(RAGGED[:4]), draft=True)
        baseline = tokens(made, 0, Budget(steps=40))
        block = made.decode(Role(growth.levels), Budget(steps=12), ())
        assert same_prefixes(block.tokens, baseline) and not block.counters["mask_integrity_failures"]

"""Whole steps of a tree on a CPU, each kernel run from its own source, beside steps of the baseline and a chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.analysis.perf_invariants.spans import shown_intact, span_fault
from specgate.backends.eagle3.cupy.engine.decode_run import StopRule, read
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SCALE_POSITIONS
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.spans import before_writing, with_trees
from specgate.backends.eagle3.lib.kv.modes import KvMode, KvModes
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.contract import Held, Role, Sampling
from specgate.contract.samples.spans import ShownSpans, StepSpans
from tests.eagle3.cupy.engine.tracing import block_of, check_common_rows, same_prefixes
from tests.eagle3.cupy.step.decoder import LENGTHS, TREE, Decoder, cached, check_fewer_slots

pytestmark = pytest.mark.usefixtures("whole_steps")

CHAIN = TreeShape.of([(0,), (0, 0), (0, 0, 0)])
DYNAMIC = DynamicGrowth(3, 3, 10)
"""It runs the draft on six nodes beside the root's."""


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.of(TREE)


@pytest.fixture(scope="module")
def growing() -> Decoder:
    return Decoder.of(DYNAMIC)


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> tuple[Any, Mapping[tuple[int, int], Tensor]]:
    return decoder.decode(0, 18)


def test_a_tree_emits_the_baselines_tokens_from_the_baselines_logits_bit_for_bit(
    decoder: Decoder, plain: tuple[Any, Mapping[tuple[int, int], Tensor]]
) -> None:
    text, wanted = plain
    check_fewer_slots(decoder, 0)
    block, logits = decoder.decode(3, 4, text.tokens)
    assert same_prefixes(block.tokens, text.tokens)
    check_common_rows(logits, wanted, 4 * 3 + 9)
    assert sum(a for row in block.accepted for a in row) > 8, block.accepted


@pytest.mark.parametrize("kv", ["fp8", "nvfp4"])
def test_a_tree_goes_with_experts_sliding_windows_sinks_and_caches_of_codes(kv: KvMode) -> None:
    """All at once, and the cache is left as the baseline leaves it, whose scales begin within trees. `kernels/trees`
    has each beside a chain, and a GPU every pair in whole runs. Steps for two of three slots have the same bits, too.
    """
    made = Decoder.of(DYNAMIC, kv=KvModes(kv, kv), experts=True)
    text, wanted = made.decode(0, 14)
    after_plain = [cached(made, slot, length + 12) for slot, length in enumerate(LENGTHS)]
    block, logits = made.decode(3, 3, text.tokens)
    check_common_rows(logits, wanted, 3 * 3 + 7)
    assert sum(a for row in block.accepted for a in row) > 6, block.accepted
    whole = SCALE_POSITIONS if kv == "fp8" else 1  # of the last scale's positions some were not reached by both
    for slot, length in enumerate(LENGTHS):
        end = min(length + 12, length + len(block.tokens[slot]) - 2) // whole * whole
        for mine, theirs in zip(cached(made, slot, end), after_plain[slot], strict=True):
            assert torch.equal(mine, theirs[:, :, : mine.shape[2]])
    check_fewer_slots(made, 3)


@pytest.mark.parametrize(("kind", "k"), [("decoder", 3), ("growing", 3), ("decoder", 0)])
def test_the_harness_finds_spans_and_trees_of_steps_intact_and_a_block_of_another_slot(
    kind: str, k: int, request: pytest.FixtureRequest
) -> None:
    made: Decoder = request.getfixturevalue(kind)
    b, cycle, steps = made.b, Cycle(made.model, made.draft, made.sizes, 3, k), list[StepSpans]()
    made.prefilled.rewind(b, StopRule((), (), made.sizes.positions))
    for _ in range(4):
        cycle.reserve_blocks(b)
        before = before_writing(cycle, b)
        cycle(b)
        steps.append(with_trees(before, cycle, b))
    decoded, fault = read(b.slots, 3, k, [1] * 4, [0] * 4)
    timed = block_of(decoded, Role(k), LENGTHS)
    shown = ShownSpans(BLOCK, made.sizes.blocks, decoded.tokens, tuple(steps))
    intact = shown_intact(shown, timed, trees=k > 0)
    assert not fault and (intact.held, intact.evidence["shown_steps"]) == (Held.HELD, 4), intact.message
    b.kv.block_table[1, int(b.slots.length[1]) // BLOCK] = int(b.kv.block_table[0, 0])
    broken = replace(shown, steps=(*steps, before_writing(cycle, b)))
    assert (
        span_fault(broken.steps[-1], broken)
        == f"slot 0 may write block {steps[0].tables[0][0]}, and slot 1 has it, too"
    )


@pytest.mark.parametrize("tree", [TREE, DYNAMIC], ids=["file", "dynamic"])
def test_a_tree_emits_what_plain_sampling_draws_with_penalties_of_each_path(tree: DraftTree) -> None:
    """Nodes are drawn for their depths, whatever their numbers, and count the tokens of their own paths."""
    made = Decoder.of(tree, sampling=Sampling(temperature=1.5, top_p=0.9, frequency_penalty=0.5, presence_penalty=0.2))
    text, wanted = made.decode(0, 12)
    block, logits = made.decode(3, 3, text.tokens)
    assert same_prefixes(block.tokens, text.tokens)
    check_common_rows(logits, wanted, 3 * 3 + 7)
    assert sum(a for row in block.accepted for a in row) > 6, block.accepted
    check_fewer_slots(made, 3)


def first_drafts(*decoders: Decoder) -> list[Tensor]:
    """What each drafts in its first step, over the same prompts."""
    drafted = []
    for each in decoders:
        each.prefilled.rewind(each.b, StopRule((), (), each.sizes.positions))
        Cycle(each.model, each.draft, each.sizes, 3, 3)(each.b)
        drafted.append(each.b.slots.drafts.clone())
    return drafted


def test_a_tree_drafts_on_its_first_path_what_a_chain_drafts_and_accepts_no_less(decoder: Decoder) -> None:
    chain = Decoder.of(None)
    of_tree, of_chain = first_drafts(decoder, chain)
    nodes = [TREE.numbers[path] for path in CHAIN.paths]
    assert torch.equal(of_tree[:, [node - 1 for node in nodes]], of_chain[:, :3])
    assert (decoder.b.slots.accepted >= chain.b.slots.accepted).all()


def test_a_dynamic_tree_of_one_branch_drafts_and_accepts_the_chain() -> None:
    chain, narrow = Decoder.of(None), Decoder.of(DynamicGrowth(3, 1, 3))
    (of_chain, of_tree) = first_drafts(chain, narrow)
    assert torch.equal(of_tree[:, :3], of_chain[:, :3])
    assert torch.equal(narrow.b.slots.accepted, chain.b.slots.accepted)
    (one, logits), (other, wanted) = chain.decode(3, 3), narrow.decode(3, 3)
    assert (one.tokens, one.accepted) == (other.tokens, other.accepted)
    assert logits.keys() == wanted.keys() and all(torch.equal(logits[at], wanted[at]) for at in logits)


def test_a_dynamic_tree_has_the_paths_of_the_draft_behind_its_tokens(growing: Decoder) -> None:
    """Behind the root and behind each node that has children, these are the likeliest, and the tree of a file that has
    the same paths has the same tokens.
    """
    (drafts,) = first_drafts(growing)
    assert growing.b.tree is not None
    for slot in range(3):
        parents = growing.b.tree.parents[slot].tolist()
        paths = dict[int, tuple[int, ...]]({0: ()})
        for node, parent in enumerate(parents[1:], 1):
            rank = sum(parents[other] == parent for other in range(1, node))
            paths[node] = (*paths[parent], rank)
        fixed = Decoder.of(TreeShape.of(list(paths.values())[1:]))
        (wanted,) = first_drafts(fixed)
        numbers = fixed.sizes.tree.numbers if isinstance(fixed.sizes.tree, TreeShape) else {}
        assert len(numbers) == DYNAMIC.rows
        for node in range(1, DYNAMIC.rows):
            assert drafts[slot, node - 1] == wanted[slot, numbers[paths[node]] - 1]

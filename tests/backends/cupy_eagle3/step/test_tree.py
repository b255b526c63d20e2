"""Whole steps of a tree on a CPU, each kernel run from its own source, beside steps of the baseline and a chain."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.engine.decode_run import StopRule, read
from specgate.backends.cupy_eagle3.engine.prefilled import Prefilled, first_tokens, prefill_prompts
from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.state.kv_blocks import KVBlocks
from specgate.backends.cupy_eagle3.memory.buffers import Buffers
from specgate.backends.cupy_eagle3.memory.cache_layout import assign_blocks
from specgate.backends.cupy_eagle3.memory.model import Draft, Target
from specgate.backends.cupy_eagle3.memory.sizes import DraftTree, Sizes
from specgate.backends.cupy_eagle3.step.cycle import Cycle
from specgate.eagle3.trees.growing import DynamicGrowth
from specgate.eagle3.trees.shape import TreeShape
from specgate.pair_tools.plant.calibrate import made_draft, made_target
from tests.backends.cupy_eagle3.gpu_pairs import RECIPE_A, random_prompts, shape
from tests.backends.cupy_eagle3.kernels.host import Host
from tests.backends.cupy_eagle3.kernels.trees.random_trees import path_to

TREE = TreeShape.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 1), (0, 0, 0), (0, 0, 2), (1, 0, 0)])
CHAIN = TreeShape.of([(0,), (0, 0), (0, 0, 0)])
DYNAMIC = DynamicGrowth(3, 3, 10)
"""It runs the draft on six nodes beside the root's."""
LENGTHS = [5, BLOCK - 2, 2 * BLOCK - 4]
"""Prompts that end before a block, at its end, and at the end of a chunk."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A planted pair over prompts that are prefilled."""

    model: Target
    draft: Draft
    sizes: Sizes
    b: Buffers
    prefilled: Prefilled

    @classmethod
    def of(cls, tree: DraftTree | None) -> Decoder:
        pair, recipe = shape(2, 1, 64, hidden=128), replace(RECIPE_A, signal=0.95)
        target = made_target(recipe, pair, torch.bfloat16, "cpu")
        draft = made_draft(recipe, pair, torch.bfloat16, "cpu")
        rows = tree.rows if tree else CHAIN.rows
        sizes = Sizes(3, 230, rows, fmha=FmhaConfig(kv_tile=128, warps=4, stages=2), tree=tree)
        b = Buffers.allocate(target.geometry, draft.geometry, sizes, "cpu")
        model = Target.of(target, sizes.positions)
        head = Draft.of(draft, model, sizes.positions)
        prompts = random_prompts(LENGTHS)
        layout = assign_blocks(prompts, sizes)
        last = prefill_prompts(model, head, b, prompts, layout)
        b.kv.copy_(layout.kv)
        first, fault = first_tokens(Cycle(model, head, sizes, 3, 0).verify, b, last, LENGTHS)
        assert not fault
        prefilled = Prefilled(
            prompts=tuple(map(tuple, prompts)),
            layout=layout,
            first=first,
            kv=KVBlocks(*(t.clone() for t in b.kv.tensors())),
            features=torch.stack([row.features for row in last if row.features is not None]),
        )
        return cls(model, head, sizes, b, prefilled)

    def decode(
        self, k: int, steps: int, known: Sequence[Sequence[int]] | None = None
    ) -> tuple[Any, dict[tuple[int, int], Tensor]]:
        """What is decoded, and the logits [V] of each (slot, position) whose context is the emitted text.

        With `known`, the text of every slot, some path of each tree is made the text's; else nearly nothing would be
        accepted of so small a pair.
        """
        cycle, slots, found = Cycle(self.model, self.draft, self.sizes, 3, k), self.b.slots, {}
        drafts = cycle.tree
        if known is not None and drafts is not None:
            dice = random.Random(1)

            def helped(b: Buffers) -> None:
                drafts(b)
                assert b.tree is not None
                for slot, text in enumerate(known):
                    parents = b.tree.parents[slot].tolist()
                    for depth, node in enumerate(path_to(dice.randrange(1, len(parents)), parents)[1:], 1):
                        slots.drafts[slot, node - 1] = text[int(slots.emitted[slot]) + depth - 1]

            cycle.tree = helped  # type: ignore[assignment]
        self.prefilled.rewind(self.b, StopRule((), (), self.sizes.positions))
        for _ in range(steps):
            active, lengths = slots.active[: int(slots.active_count)].tolist(), slots.length.tolist()
            cycle(self.b)
            assert not slots.fault.any()
            for a, slot in enumerate(active):
                for t in range(int(slots.accepted[slot]) + 1):
                    node = int(self.b.tree.path[slot, t]) if cycle.tree and self.b.tree else t
                    row = self.b.target.layer.logits[a * cycle.rows + node]
                    found[slot, lengths[slot] + t] = row.clone()
        return read(slots, 3, k, [1] * steps, [0] * steps)[0], found


@pytest.fixture(scope="module", autouse=True)
def kernels_on_the_cpu(host: Host) -> Any:
    nvtx = SimpleNamespace(RangePush=lambda name: None, RangePop=lambda: None)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(Kernel, "enqueue", lambda *arguments, **keywords: host.enqueue(*arguments, **keywords))
        patch.setitem(sys.modules, "cupy", SimpleNamespace())
        patch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvtx=nvtx))
        yield


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.of(TREE)


@pytest.fixture(scope="module")
def growing() -> Decoder:
    return Decoder.of(DYNAMIC)


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> tuple[Any, Mapping[tuple[int, int], Tensor]]:
    return decoder.decode(0, 18)


@pytest.mark.slow("runs whole steps from their source")
@pytest.mark.parametrize("kind", ["decoder", "growing"])
def test_a_tree_emits_the_baselines_tokens_from_the_baselines_logits_bit_for_bit(
    kind: str, plain: tuple[Any, Mapping[tuple[int, int], Tensor]], request: pytest.FixtureRequest
) -> None:
    text, wanted = plain
    block, logits = request.getfixturevalue(kind).decode(3, 4, text.tokens)
    assert all(
        list(one)[: len(other)] == list(other)[: len(one)] for one, other in zip(block.tokens, text.tokens, strict=True)
    )
    common = [at for at in logits if at in wanted]
    assert len(common) > 4 * 3 + 8
    assert all(torch.equal(logits[at], wanted[at]) for at in common)
    assert sum(a for row in block.accepted for a in row) > 8, block.accepted


def first_drafts(*decoders: Decoder) -> list[Tensor]:
    """What each drafts in its first step, over the same prompts."""
    drafted = []
    for each in decoders:
        each.prefilled.rewind(each.b, StopRule((), (), each.sizes.positions))
        Cycle(each.model, each.draft, each.sizes, 3, 3)(each.b)
        drafted.append(each.b.slots.drafts.clone())
    return drafted


@pytest.mark.slow("runs whole steps from their source")
def test_a_tree_drafts_on_its_first_path_what_a_chain_drafts_and_accepts_no_less(decoder: Decoder) -> None:
    chain = Decoder.of(None)
    of_tree, of_chain = first_drafts(decoder, chain)
    nodes = [TREE.numbers[path] for path in CHAIN.paths]
    assert torch.equal(of_tree[:, [node - 1 for node in nodes]], of_chain[:, :3])
    assert (decoder.b.slots.accepted >= chain.b.slots.accepted).all()


@pytest.mark.slow("runs whole steps from their source")
def test_a_dynamic_tree_of_one_branch_drafts_and_accepts_the_chain() -> None:
    chain, narrow = Decoder.of(None), Decoder.of(DynamicGrowth(3, 1, 3))
    (of_chain, of_tree) = first_drafts(chain, narrow)
    assert torch.equal(of_tree[:, :3], of_chain[:, :3])
    assert torch.equal(narrow.b.slots.accepted, chain.b.slots.accepted)
    (one, logits), (other, wanted) = chain.decode(3, 3), narrow.decode(3, 3)
    assert (one.tokens, one.accepted) == (other.tokens, other.accepted)
    assert logits.keys() == wanted.keys() and all(torch.equal(logits[at], wanted[at]) for at in logits)


@pytest.mark.slow("runs whole steps from their source")
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

"""Whole steps on a CPU, each kernel run from its own source, of a small planted pair over prompts of some slots."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule, read
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.engine.prefilled import Prefilled, first_tokens, prefill_prompts
from specgate.backends.eagle3.cupy.engine.sampled import name_requests
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SCALE_POSITIONS
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, tensors_of
from specgate.backends.eagle3.cupy.memory.coded_pages import block_scales, key_codes, outer_of, value_codes
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes, assign_blocks
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import PLAIN, Kind, bound_prompts
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.pair_tools.plant.calibrate import made_target
from specgate.backends.eagle3.pair_tools.plant.geometries import mixture
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.contract import Sampling
from tests.eagle3.cupy.gpu_pairs import RECIPE_A, random_prompts, shape
from tests.eagle3.lib.planted.drafts import made_draft
from tests.eagle3.lib.trees.brute_force import ByHand

LENGTHS = [5, BLOCK - 2, 2 * BLOCK - 4]
"""Prompts that end before a block, at its end, and at the end of a chunk."""
TREE = TreeShape.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 1), (0, 0, 0), (0, 0, 2), (1, 0, 0)])
"""One for all whole steps, since kernels are compiled for the tree that they run on."""


def made_pair(
    dtype: torch.dtype, *, experts: bool = False, head_norms: bool = False
) -> tuple[TargetCheckpoint, DraftCheckpoint]:
    """A dense target, also with norms of its heads, each of whose weights is another; or one with experts, windows and
    sinks.
    """
    pair, recipe = shape(2, 1, 64, hidden=128), replace(RECIPE_A, signal=0.95)
    pair = replace(pair, target=replace(pair.target, head_norms=head_norms))
    if experts:
        target = mixture(replace(pair.target, heads=8, intermediate=64), ExpertGeometry(8, 2, mxfp4=True), window=32)
        pair, recipe = replace(pair, target=target), replace(recipe, expert_overlap=0.5)
    made = made_target(recipe, pair, dtype, "cpu")
    for n, name in enumerate(name for name in made.tensors if name.endswith(("q_norm.weight", "k_norm.weight"))):
        noise = torch.randn(64, generator=torch.Generator().manual_seed(n)).to(torch.bfloat16)
        made.tensors[name] *= 1 + 0.5 * noise.to(dtype)
    return made, made_draft(recipe, pair, dtype, "cpu")


@dataclass(frozen=True, slots=True)
class Decoder:
    """A planted pair over prompts that are prefilled."""

    model: Target
    draft: Draft
    sizes: Sizes
    b: Buffers
    prefilled: Prefilled

    @classmethod
    def of(
        cls,
        tree: DraftTree | None,
        k: int = 3,
        partial: PartialPlan | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
        kv: KvModes = AS_COMPUTED,
        experts: bool = False,
        forced: bool = False,
        sampling: Sampling | None = None,
        head_norms: bool = False,
    ) -> Decoder:
        """It drafts `tree`, or chains of `k` tokens, which are verified in part as `partial` says. `kv`: the formats of
        the caches. `experts`, `head_norms`: of such a target. `forced`: it accepts what `b.forced` says.
        `sampling`: it draws.
        """
        prompts = prompts or random_prompts(LENGTHS)
        slots, lengths = len(prompts), [*map(len, prompts)]
        target, draft = made_pair(torch.bfloat16, experts=experts, head_norms=head_norms)
        tiling = FmhaConfig(kv_tile=128, warps=4, stages=2)
        sizes = Sizes(slots, 230, tree.rows if tree else k + 1, fmha=tiling, tree=tree, kv=kv)
        sizes = replace(sizes, positions=max(230, max(lengths) + 120), partial=partial, forced=forced)
        sizes = replace(sizes, sampling=sampling)
        b = Buffers.allocate(target.geometry, draft.geometry, sizes, "cpu")
        model = Target.of(target, sizes.positions)
        head = Draft.of(draft, model, sizes.positions)
        if b.sampling is not None:
            name_requests(b.sampling, prompts)
        layout = assign_blocks(prompts, sizes)
        last = prefill_prompts(model, head, b, prompts, layout, PrefillMode.on(torch.device("cpu")))
        b.kv.copy_(layout.kv)
        first, fault = first_tokens(Cycle(model, head, sizes, slots, 0).verify, b, last, lengths)
        assert not fault
        if partial is not None:
            bound_prompts(b, target.geometry, sizes, lengths)
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
        """Return the decoded tokens, and the logits [V] of each (slot, position) whose context is the emitted text.

        With `known`, the text of every slot, some path of each tree, or some tokens at the beginning of each chain, are
        made the text's; else nearly nothing would be accepted of so small a pair.
        """
        count, slots, data = self.sizes.slots, self.b.slots, {}
        cycle = Cycle(self.model, self.draft, self.sizes, count, k)
        drafts, dice = cycle.drafting, random.Random(1)

        def helped(b: Buffers) -> None:
            assert known is not None
            drafts(b)
            for slot, text in enumerate(known):
                parents = b.tree.parents[slot].tolist() if b.tree else [0, *range(k)]
                for depth, node in enumerate(ByHand(parents).way(dice.randrange(len(parents)))[1:], 1):
                    slots.drafts[slot, node - 1] = text[int(slots.emitted[slot]) + depth - 1]

        if known is not None:
            cycle.drafting = helped  # type: ignore[assignment]
        self.prefilled.rewind(self.b, StopRule((), (), self.sizes.positions))
        for _ in range(steps):
            active, lengths = slots.active[: int(slots.active_count)].tolist(), slots.length.tolist()
            cycle(self.b)
            assert not slots.fault.any()
            for a, slot in enumerate(active):
                for t in range(int(slots.accepted[slot]) + 1):
                    node = int(self.b.tree.path[slot, t]) if drafts.branches and self.b.tree else t
                    row = self.b.target.layer.logits[a * cycle.rows + node]
                    data[slot, lengths[slot] + t] = row.clone()
        return read(slots, count, k, [1] * steps, [0] * steps)[0], data


def cached(made: Decoder, slot: int, end: int) -> list[Tensor]:
    """What the target's cache holds of the positions of a slot before `end`, layer by layer, in its own format."""
    blocks = made.b.kv.block_table[slot, : -(-end // BLOCK)].long()
    pages = made.b.target.pages
    if pages.kv == "nvfp4":
        assert pages.scales is not None
        codes = key_codes(pages.k[:, blocks]), value_codes(pages.v[:, blocks])
        scales = pages.scales[:, blocks]
        rows = [of.transpose(1, 2).flatten(2, 3)[:, :, :end] for of in (*codes, *block_scales(scales))]
        return [*rows, outer_of(scales[:, 0])]
    keys = pages.k[:, blocks].transpose(1, 2).flatten(2, 3)[:, :, :end]
    values = pages.v[:, blocks].permute(0, 2, 1, 4, 3).flatten(2, 3)[:, :, :end]
    if pages.scales is None:
        return [keys, values]
    return [keys, values, pages.scales[:, blocks].transpose(1, 2).flatten(2, 3)[:, :, : -(-end // SCALE_POSITIONS)]]


def check_fewer_slots(made: Decoder, k: int, kinds: Sequence[Kind] = (PLAIN, PLAIN)) -> None:
    """Once the first of three slots has ended, steps that are launched for two slots leave what those for three leave:
    logits, tokens, counts and caches.
    """
    b, left = made.b, []
    for launched in (2, 3):
        made.prefilled.rewind(b, StopRule((), (), made.sizes.positions), made.sizes.partial)
        b.slots.active[:2], b.slots.active_count[0] = torch.tensor([1, 2]), 2
        for pages in b.pages:
            for of in tensors_of(pages):  # as no earlier run has left it; zero is no scale of NVFP4
                of[:, b.kv.free_blocks[: int(b.kv.free_count)].long()] = int(pages.kv == "nvfp4")
        for kind in kinds:
            cycle = Cycle(made.model, made.draft, made.sizes, launched, k, kind=kind)
            cycle(b)
        assert int(b.slots.step) == len(kinds) and not b.slots.fault.any()
        state = (getattr(b.slots, name) for name in ("length", "out", "accepted", "accepted_log", "drafts", "active"))
        caches = (of for slot in (1, 2) for of in cached(made, slot, int(b.slots.length[slot])))
        left.append([t.clone() for t in (b.target.layer.logits[: 2 * cycle.rows], *state, *caches)])
    assert all(torch.equal(*pair) for pair in zip(*left, strict=True))

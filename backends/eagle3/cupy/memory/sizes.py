"""Sizes that an engine is built for, and the layout of prompts in the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig, usual_config
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.state.slots import FREE, SHARED, KVBlocks
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import Sampling

DraftTree = TreeShape | DynamicGrowth
"""The tree of a file, the same in every step, or one of each step's likeliest tokens."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`slots` requests at once, each with up to `positions` cached positions and `max_rows` rows per step (K + 1).

    `fmha`: how all attention is tiled. `sampling`: how tokens are drawn; None for greedy decoding. `tree`: what the
    longest role drafts, with all its rows in `max_rows`; None for chains. `kv`: the formats of the caches of target and
    draft. `partial`: what a part of the target's cache is, over which most greedy chains are verified; None: all are
    verified over the whole cache. `forced`: chains accept what another run has recorded.
    """

    slots: int
    positions: int
    max_rows: int
    fmha: FmhaConfig = field(default_factory=FmhaConfig)
    sampling: Sampling | None = None
    tree: DraftTree | None = None
    kv: KvModes = AS_COMPUTED
    partial: PartialPlan | None = None
    forced: bool = False

    def usual(self, target: TargetGeometry) -> Sizes:
        """The same, with the tiling of attention that an engine for such a target uses by itself."""
        return replace(self, fmha=usual_config(self.heads(target), self.slots))

    def tree_of(self, k: int) -> DraftTree | None:
        """Return the part of `tree` that spec-`k` drafts, its first levels; None if that is a chain."""
        if self.tree is None or not k:
            return None
        of_role = self.tree.first_levels(k)
        return None if of_role.is_chain else of_role

    def rows_of(self, k: int) -> int:
        """Rows that spec-`k` verifies per slot."""
        tree = self.tree_of(k)
        return tree.rows if tree else k + 1

    def partial_passes_of(self, k: int) -> int:
        """Return how many partial verifications of spec-`k` may follow each other: those before which fewer tokens than
        the plan's `refresh` can have been emitted since the last full one.
        """
        return 0 if self.partial is None or not k else -(-(self.partial.refresh or 0) // (k + 1))

    def full_rows_of(self, k: int) -> int:
        """Rows per slot of a full verification of spec-`k`: those of all tokens that partial ones may have emitted
        since the last, of the newest token and of the drafts.
        """
        return self.rows_of(k) + self.partial_passes_of(k) * (k + 1)

    def rows_in(self, k: int, *, full: bool) -> int:
        """Return the rows per slot of a step of spec-`k`, of a `full` verification or of any other."""
        return self.full_rows_of(k) if full else self.rows_of(k)

    def kept_of(self, k: int) -> KeptBlocks:
        """Return the blocks that partial verifications of spec-`k` read."""
        assert self.partial is not None
        plan = self.partial
        return KeptBlocks(plan.sink, plan.retrieval, plan.window, self.full_rows_of(k))

    def reserved_of(self, k: int) -> int:
        """Positions per slot that spec-`k` needs blocks for: of its rows, and of those that the draft runs on."""
        tree = self.tree_of(k)
        return max(tree.rows, tree.forest) if isinstance(tree, DynamicGrowth) else self.full_rows_of(k)

    @property
    def most_drafts(self) -> int:
        """K of the longest role: levels of its tree, or draft tokens of its chain."""
        return self.tree.depth if self.tree else self.max_rows - 1

    @property
    def most_rows(self) -> int:
        """Rows per slot of the widest pass of the target."""
        if self.partial is None:
            return self.max_rows
        return max(self.full_rows_of(k) for k in range(self.most_drafts + 1))

    @property
    def most_emitted(self) -> int | None:
        """Tokens that a step emits at most; None: as many as it has rows."""
        return self.tree.depth + 1 if self.tree else None

    @property
    def max_blocks(self) -> int:
        """Cache blocks per slot."""
        return -(-self.positions // BLOCK)

    @property
    def blocks(self) -> int:
        """Cache blocks in all: enough for every slot at its longest."""
        return self.slots * self.max_blocks

    @property
    def rows(self) -> int:
        return self.slots * self.max_rows

    @property
    def largest_step(self) -> int:
        """Rows of the widest pass of the target over all slots."""
        return self.slots * self.most_rows

    def heads(self, geometry: TargetGeometry | DraftGeometry) -> Heads:
        mode = self.kv.draft if isinstance(geometry, DraftGeometry) else self.kv.target
        return Heads.of(geometry, self.positions, mode)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`blocks[slot]`: cache blocks, in the order of positions. `twin[slot]`: the first slot that has an equal prompt;
    where no slot before has one, the slot itself. `private[slot]`: how many of the last blocks hold positions that are
    not taken from another prompt. `start[slot]`: the first position that is computed; of an equal prompt none is.
    `kv`: the same as the kernels know it.
    """

    blocks: tuple[tuple[int, ...], ...]
    twin: tuple[int, ...]
    private: tuple[int, ...]
    start: tuple[int, ...]
    kv: KVBlocks

    @property
    def reused_positions(self) -> int:
        """Positions that were not computed, because another prompt has, or had, the same beginning."""
        return sum((len(blocks) - own) * BLOCK for blocks, own in zip(self.blocks, self.private, strict=True))


Cached = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
"""Prompts that the cache holds, each with its blocks."""


def assign_blocks(prompts: Sequence[Sequence[int]], sizes: Sizes, chunk: int = 0, cached: Cached = ()) -> CacheLayout:
    """Give every prompt its blocks, the lowest first. Equal prompts share those blocks that no step will ever write.

    A draft writes from the prompt's last position on, so the block with that position is never shared.

    With a `chunk`, a multiple of BLOCK, prompts of one length share as many whole chunks as they begin with alike, also
    with prompts that are `cached`. The token behind these is the same too, since the draft's last row in them has it.
    """
    begun, taken = dict[tuple[int, tuple[int, ...]], int](), list[tuple[int, int]]()
    for number, prompt in enumerate((*(prompt for prompt, _ in cached), *map(tuple, prompts)), -len(cached)):
        ends = range((len(prompt) - 2) // chunk * chunk, 0, -chunk) if chunk else ()
        beginnings = {end: (len(prompt), prompt[: end + 1]) for end in ((len(prompt), *ends) if number >= 0 else ends)}
        if number >= 0:
            known = ((begun[of], end) for end, of in beginnings.items() if of in begun)
            taken.append(next(known, (number, 0)))
        for of in beginnings.values():
            begun.setdefault(of, number)
    blocks = {number: own for number, (_, own) in enumerate(cached, -len(cached))}
    kept = {block for source, start in taken if source < 0 for block in blocks[source][: start // BLOCK]}
    unused, private = (block for block in range(sizes.blocks) if block not in kept), list[int]()
    for slot, (length, (source, start)) in enumerate(zip(map(len, prompts), taken, strict=True)):
        shared = blocks[source][: min(start, length - 1) // BLOCK] if start else ()
        private.append(-(-length // BLOCK) - len(shared))
        blocks[slot] = (*shared, *(next(unused) for _ in range(private[slot])))
    own_blocks = tuple(blocks[slot] for slot in range(len(prompts)))
    twins = (source if start == len(prompts[slot]) else slot for slot, (source, start) in enumerate(taken))
    starts = tuple(start for _, start in taken)
    return CacheLayout(own_blocks, tuple(twins), tuple(private), starts, as_tensors(own_blocks, sizes))


def as_tensors(blocks: Sequence[Sequence[int]], sizes: Sizes) -> KVBlocks:
    """The layout as the kernels know it, on the CPU. The lowest free block lies on top of the stack of free ones."""
    kv = KVBlocks.allocate(sizes.slots, sizes.max_blocks, sizes.blocks, "cpu")
    kv.owner.fill_(FREE)
    for slot, own in enumerate(blocks):
        ids = torch.tensor(own)
        kv.block_table[slot, : len(own)] = ids
        kv.held[slot] = kv.prompt_blocks[slot] = len(own)
        kv.owner[ids] = torch.where(kv.owner[ids] == FREE, slot, SHARED).int()
    free = (kv.owner == FREE).nonzero().flatten().flip(0).int()
    kv.free_blocks[: len(free)] = free
    kv.free_count[0] = len(free)
    return kv

"""Layout of prompts in the paged cache: blocks of each slot, shared ones and free ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.state.slots import FREE, SHARED, KVBlocks
from specgate.backends.eagle3.cupy.memory.sizes import Sizes


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`blocks[slot]`: cache blocks, in the order of positions. `twin[slot]`: the first slot that has an equal prompt;
    where no slot before has one, the slot itself. `private[slot]`: how many of the last blocks are not shared with the
    twin. `kv`: the same as the kernels know it.
    """

    blocks: tuple[tuple[int, ...], ...]
    twin: tuple[int, ...]
    private: tuple[int, ...]
    kv: KVBlocks

    @property
    def reused_positions(self) -> int:
        """Positions that were not computed, because another slot has the same prompt."""
        return sum(
            (len(blocks) - own) * BLOCK
            for blocks, own, twin, slot in zip(self.blocks, self.private, self.twin, range(len(self.twin)), strict=True)
            if twin != slot
        )


def assign_blocks(prompts: Sequence[Sequence[int]], sizes: Sizes) -> CacheLayout:
    """Give every prompt its blocks, the lowest first. Equal prompts share those blocks that no step will ever write.

    A draft writes from the prompt's last position on, so the block with that position is never shared.
    """
    first: dict[tuple[int, ...], int] = {}
    blocks, twin, private, unused = list[tuple[int, ...]](), list[int](), list[int](), iter(range(sizes.blocks))
    for slot, prompt in enumerate(prompts):
        twin.append(first.setdefault(tuple(prompt), slot))
        shared = blocks[twin[slot]][: (len(prompt) - 1) // BLOCK] if twin[slot] != slot else ()
        private.append(-(-len(prompt) // BLOCK) - len(shared))
        blocks.append((*shared, *(next(unused) for _ in range(private[slot]))))
    return CacheLayout(tuple(blocks), tuple(twin), tuple(private), as_tensors(blocks, sizes))


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

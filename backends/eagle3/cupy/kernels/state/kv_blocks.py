"""Owners of cache blocks (`kv_blocks.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

FREE: Final = -1
SHARED: Final = -2
"""Owners of blocks that no single slot owns: FREE ones lie on the free stack, SHARED ones are read by several slots and
written by none.
"""


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """Owners of blocks; all int32.

    `block_table` [S, blocks per slot] maps the positions of a slot to blocks. The first `held` [S] entries of a row are
    valid, and the first `prompt_blocks` [S] of these hold the prompt. `owner` [blocks] is a slot, FREE or SHARED.
    `free_blocks` [blocks] is a stack of `free_count` [1] blocks.
    """

    block_table: Tensor
    held: Tensor
    prompt_blocks: Tensor
    owner: Tensor
    free_blocks: Tensor
    free_count: Tensor

    @classmethod
    def allocate(cls, slots: int, max_blocks: int, blocks: int, device: torch.device | str) -> KVBlocks:
        """`blocks` in all, up to `max_blocks` per slot; nothing is free before `copy_` has brought a layout."""

        def of(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(of(slots, max_blocks), of(slots), of(slots), of(blocks), of(blocks), of(1))

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.block_table, self.held, self.prompt_blocks, self.owner, self.free_blocks, self.free_count)

    def copy_(self, other: KVBlocks) -> None:
        """Take over another layout of the same sizes."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)

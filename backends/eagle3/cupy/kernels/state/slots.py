"""The state of a decode run on the GPU, as the kernels of a cycle know it, and the owners of cache blocks.

S slots, at most T rows per slot, at most C tokens of output per slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Annotated, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.arrays import Arrays

MAX_ENDS: Final = 64
"""Most EOS and stop ids that a rule can hold."""


class Fault(IntFlag):
    """Faults that a kernel has detected. Once a bit is set, the results of the decode run mean nothing."""

    TARGET_NOT_FINITE = 1
    DRAFT_NOT_FINITE = 2
    KV_INTEGRITY = 4
    KV_EXHAUSTED = 8
    MASK_INTEGRITY = 16
    PEER_LATE = 32
    PEERS_DIFFER = 64


class Stamp(IntEnum):
    """Columns of `Slots.stamps`: when a step began, and when each of its phases had ended."""

    STEP_BEGAN = 0
    DRAFTED = 1
    VERIFIED = 2
    ACCEPTED = 3
    COMMITTED = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step: `rows_per_slot` tokens for each of the `active_count` (int32 [1]) slots in `active` (int32
    [S]).

    Launches are made for `slots` slots, however many of them are active when the kernel runs.
    """

    active: Tensor
    active_count: Tensor
    slots: int
    rows_per_slot: int

    @property
    def most(self) -> int:
        return self.slots * self.rows_per_slot

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that shapes of operands name."""
        return {"S": self.slots, "R": self.most}


OfSlots = Annotated[Tensor, "int32 [S]"]
OfRows = Annotated[Tensor, "int32 [S, T]"]
Single = Annotated[Tensor, "int32 [1]"]


@dataclass(frozen=True, slots=True)
class Slots(Arrays):
    """The arrays of a decode run.

    Of each slot: `length`, its committed positions; `last_token`, its newest token, which the target has not read yet;
    `emitted`, how many tokens it has emitted; `truncated`, how many tokens beyond its end were dropped; `finish`,
    0 running, 1 EOS, 2 stop, 3 length; `accepted`, the accepted drafts of the last step; and `counts`, how many tokens
    in `pending` the draft has yet to extend over.

    `active` lists the slots that still decode, `active_count` of them. `drafts` and `target_tokens` belong to the
    current step. `out` is what was emitted. `rule` is {limit, number of EOS ids, number of stop ids, ids …}.
    `accepted_log` and `stamps` (nanoseconds) have a row per step, and `step` counts the steps. `fault` holds the bits
    of Fault.
    """

    active: OfSlots
    active_count: Single
    length: OfSlots
    last_token: OfSlots
    emitted: OfSlots
    truncated: OfSlots
    finish: OfSlots
    accepted: OfSlots
    counts: OfSlots
    pending: OfRows
    drafts: OfRows
    target_tokens: OfRows
    out: Annotated[Tensor, "int32 [S, C]"]
    rule: Annotated[Tensor, "int32 [3 + ENDS]"]
    accepted_log: Annotated[Tensor, "int32 [C, S]"]
    stamps: Annotated[Tensor, "int64 [C, STAMPS]"]
    step: Single
    fault: Single

    @classmethod
    def allocate(cls, slots: int, max_rows: int, capacity: int, device: torch.device | str) -> Slots:
        """For decode runs of up to `capacity` steps and tokens."""
        return cls.zeros(device, S=slots, T=max_rows, C=capacity, ENDS=MAX_ENDS, STAMPS=len(Stamp))

    def rows(self, slots: int, per_slot: int) -> Rows:
        """The rows of a step over `slots` slots."""
        return Rows(self.active, self.active_count, slots, per_slot)

    @property
    def constants(self) -> dict[str, int]:
        slots, max_rows = self.drafts.shape
        return {"slots": slots, "max_rows": max_rows, "capacity": self.out.shape[1]}


FREE: Final = -1
SHARED: Final = -2
"""Owners of blocks that no single slot owns: FREE ones lie on the free stack, SHARED ones are read by several slots and
written by none.
"""


@dataclass(frozen=True, slots=True)
class KVBlocks(Arrays):
    """Owners of blocks.

    `block_table` maps the positions of a slot to blocks. The first `held` entries of a row are valid, and the first
    `prompt_blocks` of these hold the prompt. `owner` is a slot, FREE or SHARED. `free_blocks` is a stack of
    `free_count` blocks.
    """

    block_table: Annotated[Tensor, "int32 [S, PER_SLOT]"]
    held: OfSlots
    prompt_blocks: OfSlots
    owner: Annotated[Tensor, "int32 [BLOCKS]"]
    free_blocks: Annotated[Tensor, "int32 [BLOCKS]"]
    free_count: Single

    @classmethod
    def allocate(cls, slots: int, max_blocks: int, blocks: int, device: torch.device | str) -> KVBlocks:
        """`blocks` in all, up to `max_blocks` per slot; nothing is free before `copy_` has brought a layout."""
        return cls.zeros(device, S=slots, PER_SLOT=max_blocks, BLOCKS=blocks)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.block_table, self.held, self.prompt_blocks, self.owner, self.free_blocks, self.free_count)

    def copy_(self, other: KVBlocks) -> None:
        """Take over another layout of the same sizes."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)

"""The state of a decode run on the GPU, as the kernels of a cycle know it, and the owners of cache blocks.

S slots, at most T rows per slot, at most C tokens of output per slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

import torch
from torch import Tensor

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


@dataclass(frozen=True, slots=True)
class Slots:
    """The arrays of a decode run. All are int32, but for `stamps`.

    Of each slot, [S]: `length`, its committed positions; `last_token`, its newest token, which the target has not read
    yet; `emitted`, how many tokens it has emitted; `truncated`, how many tokens beyond its end were dropped; `finish`,
    0 running, 1 EOS, 2 stop, 3 length; `accepted`, the accepted drafts of the last step; and `counts`, how many tokens
    in `pending` [S, T] the draft has yet to extend over.

    `active` [S] lists the slots that still decode, `active_count` [1] of them. `drafts` and `target_tokens` [S, T]
    belong to the current step. `out` [S, C] is what was emitted. `rule` is {limit, number of EOS ids, number of stop
    ids, ids …}. `accepted_log` [steps, S] and `stamps` (int64 nanoseconds, [steps, 5]) have a row per step, and `step`
    [1] counts the steps. `fault` [1] holds the bits of Fault.
    """

    active: Tensor
    active_count: Tensor
    length: Tensor
    last_token: Tensor
    emitted: Tensor
    truncated: Tensor
    finish: Tensor
    accepted: Tensor
    counts: Tensor
    pending: Tensor
    drafts: Tensor
    target_tokens: Tensor
    out: Tensor
    rule: Tensor
    accepted_log: Tensor
    stamps: Tensor
    step: Tensor
    fault: Tensor

    @classmethod
    def allocate(cls, slots: int, max_rows: int, capacity: int, device: torch.device | str) -> Slots:
        """For decode runs of up to `capacity` steps and tokens."""

        def of(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            active=of(slots),
            active_count=of(1),
            length=of(slots),
            last_token=of(slots),
            emitted=of(slots),
            truncated=of(slots),
            finish=of(slots),
            accepted=of(slots),
            counts=of(slots),
            pending=of(slots, max_rows),
            drafts=of(slots, max_rows),
            target_tokens=of(slots, max_rows),
            out=of(slots, capacity),
            rule=of(3 + MAX_ENDS),
            accepted_log=of(capacity, slots),
            stamps=torch.zeros(capacity, len(Stamp), dtype=torch.int64, device=device),
            step=of(1),
            fault=of(1),
        )

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

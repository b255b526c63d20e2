"""The weights of a pair on every rank: a part of the target, and the draft, whole or a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.parallel.shard import WHOLE, Shard, shards


def models_of(
    targets: Sequence[TargetCheckpoint],
    draft: DraftCheckpoint | None,
    positions: int,
    devices: Sequence[torch.device],
    *,
    draft_ranks: int = 1,
) -> list[tuple[Target, Draft | None]]:
    """The checkpoints are used up. The draft, on the first device, is copied to the others, bit for bit; where
    `draft_ranks` is above 1, each of so many devices gets its part.
    """
    made = list[tuple[Target, Draft | None]]()
    for target, own in zip(targets, drafts_of(draft, devices, draft_ranks), strict=True):
        model = Target.of(target, positions)
        made.append((model, Draft.of(own, model, positions) if own else None))
    return made


def drafts_of(
    draft: DraftCheckpoint | None, devices: Sequence[torch.device], ranks: int
) -> Sequence[DraftCheckpoint | None]:
    """The draft of each device."""
    if draft is None:
        return [None] * len(devices)
    if ranks == 1:
        return [draft, *(copied(draft, device) for device in devices[1:])]
    return [copied(draft, device, shard) for device, shard in zip(devices, shards(ranks), strict=True)]


def copied(draft: DraftCheckpoint, device: torch.device, shard: Shard = WHOLE) -> DraftCheckpoint:
    """The part `shard` of the draft, on `device`."""
    parts = draft.tensors if shard.ranks == 1 else {name: shard.part(name, t) for name, t in draft.tensors.items()}
    tensors = {name: tensor.to(device) for name, tensor in parts.items()}
    return replace(draft, tensors=tensors, d2t=None if draft.d2t is None else draft.d2t.to(device), shard=shard)


def with_exchange(plan: Mapping[str, int], mailboxes: int, prefill: int) -> dict[str, int]:
    """A memory plan with what ranks exchange in steps and in a prefill, in bytes on each GPU."""
    return {**plan, "exchange between GPUs": mailboxes + prefill}

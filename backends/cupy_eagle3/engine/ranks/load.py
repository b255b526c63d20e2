"""The weights of a pair on every rank: a part of the target, and the whole draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from specgate.backends.cupy_eagle3.memory.model import Draft, Target
from specgate.eagle3.pair import DraftCheckpoint, TargetCheckpoint


def models_of(
    targets: Sequence[TargetCheckpoint],
    draft: DraftCheckpoint | None,
    positions: int,
    devices: Sequence[torch.device],
) -> list[tuple[Target, Draft | None]]:
    """The checkpoints are used up. The draft, on the first device, is copied to the others, bit for bit."""
    drafts = [copied(draft, device) for device in devices[1:]] if draft else []
    made = list[tuple[Target, Draft | None]]()
    for target, own in zip(targets, [draft, *drafts] if draft else [None] * len(targets), strict=True):
        model = Target.of(target, positions)
        made.append((model, Draft.of(own, model, positions) if own else None))
    return made


def copied(draft: DraftCheckpoint, device: torch.device) -> DraftCheckpoint:
    tensors = {name: tensor.to(device) for name, tensor in draft.tensors.items()}
    return replace(draft, tensors=tensors, d2t=None if draft.d2t is None else draft.d2t.to(device))


def with_exchange(plan: Mapping[str, int], mailboxes: int, prefill: int) -> dict[str, int]:
    """A memory plan with what ranks exchange in steps and in a prefill, in bytes on each GPU."""
    return {**plan, "exchange between GPUs": mailboxes + prefill}

"""Memory traffic that the size of a draft's vocabulary costs: of its LM head, a draft step, and a whole cycle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes

DRAFTED: Final = 3
"""Draft tokens of the cycle that is reckoned."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that are read at least, by one request, without the KV cache: `head` by the draft's LM head, `step` by a
    draft step, `cycle` by a cycle of `DRAFTED` draft tokens and their verification.
    """

    head: int
    step: int
    cycle: float


def cost(target: TargetGeometry, draft: DraftGeometry, size: int, dtype: torch.dtype) -> Cost:
    """The cost with a draft vocabulary of `size`, where weights are stored in `dtype`."""
    traffic = pair_traffic(target, replace(draft, draft_vocab=size, own_lm_head=True), dtype)
    assert traffic.draft is not None
    step = traffic.draft.step
    slots = [Slot(cached=0, rows=DRAFTED + 1)]
    cycle = pass_bytes(traffic.target, slots).weights + draft_bytes(traffic.draft, slots, [DRAFTED]).weights
    return Cost(size * draft.hidden * dtype.itemsize, step.weight_bytes + step.token_bytes, cycle)

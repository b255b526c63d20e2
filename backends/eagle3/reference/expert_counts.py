"""Count the experts of a layer that the rows of a pass reach: all rows together, and row by row those that are new."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.contract.routing import ExpertCounts, counts_of

STEPS: Final = 64
"""Steps that are counted at a time: 1.2 MB for four requests of gpt-oss-120b."""


class ExpertCounter:
    """Counts the experts of a block's passes. What the passes chose is kept as it is until the block has ended, so that
    counting costs the steps no time.
    """

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self._chosen: list[Tensor] = []
        self._active: list[Tensor] = []

    def see(self, chosen: Tensor, active: Tensor) -> None:
        """A pass sent its rows to the experts `chosen` [L, B, T, k], of the same shape in all passes. Only the `active`
        [B] slots count.
        """
        self._chosen.append(chosen)
        self._active.append(active)

    def counts(self) -> ExpertCounts:
        """The counts of all passes, as many steps as `see` was called."""
        by_step, rows, fresh = list[list[int]](), list[int](), list[list[int]]()
        for start in range(0, len(self._chosen), STEPS):
            chosen = torch.stack(self._chosen[start : start + STEPS])
            active = torch.stack(self._active[start : start + STEPS])
            touched, new = reached(chosen, active, self.experts)
            by_step += touched.tolist()
            rows += (active.sum(dim=1) * chosen.shape[3]).tolist()
            fresh.append(new.tolist())
        return counts_of(by_step, rows, [sum(of) for of in zip(*fresh, strict=True)])


def reached(chosen: Tensor, active: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Count the experts that are reached, from `chosen` [S, L, B, T, k] and the slots that are `active` [S, B].

    Returns the experts that all rows of a step reach together [S, L], and the experts that each row is the first of its
    slot to reach, summed over steps, layers and slots [T].
    """
    used = torch.zeros(*chosen.shape[:3], experts, dtype=torch.bool, device=chosen.device)
    fresh = []
    for row in chosen.unbind(dim=3):
        new = torch.zeros_like(used).scatter_(-1, row, True) & active[:, None, :, None] & ~used
        fresh.append(new.sum())
        used |= new
    return used.any(dim=2).sum(dim=-1), torch.stack(fresh)

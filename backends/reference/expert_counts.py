"""How many experts of a layer the rows of a pass reach: each counted once, and row by row those that are new."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.core.routing import ExpertCounts, counts_of


class ExpertCounter:
    """Counts the experts of a block's passes. What the passes chose is kept as it is until the block has ended, so that
    counting costs the steps no time.
    """

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self._chosen: list[Tensor] = []
        self._active: list[Tensor] = []

    def see(self, chosen: Tensor, active: Tensor) -> None:
        """A pass sent its rows to the experts `chosen` [L, B, T, k]; only the `active` [B] slots count."""
        self._chosen.append(chosen)
        self._active.append(active)

    def counts(self) -> ExpertCounts:
        """The counts of all passes, as many steps as `see` was called."""
        by_step, rows = list[list[int]](), list[int]()
        fresh = torch.zeros(0, dtype=torch.long)
        for chosen, active in zip(self._chosen, self._active, strict=True):
            reached = reached_by_rows(chosen[:, active], self.experts)
            by_step.append(reached.flatten(1, 2).any(dim=1).sum(dim=-1).tolist())
            rows.append(reached.shape[1] * reached.shape[2])
            new = first_reached(reached).sum(dim=(0, 1, 3)).cpu()
            fresh = new + torch.nn.functional.pad(fresh, (0, len(new) - len(fresh)))
        return counts_of(by_step, rows, fresh.tolist())


def reached_by_rows(chosen: Tensor, experts: int) -> Tensor:
    """Whether each row's expert numbers `chosen` [L, B, T, k] name an expert, bool [L, B, T, experts]."""
    reached = torch.zeros(*chosen.shape[:-1], experts, dtype=torch.bool, device=chosen.device)
    return reached.scatter_(-1, chosen, True)


def first_reached(reached: Tensor) -> Tensor:
    """`reached` [L, B, T, experts] without what an earlier row of the same slot has reached."""
    before = reached.cumsum(dim=2) - reached.long()
    return reached & (before == 0)

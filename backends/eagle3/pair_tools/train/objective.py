"""Objective of the draft: soft labels over the draft vocabulary, at every step of the unrolled chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of row q of any step: the target's distribution of the token at position q + 2.

    `logits` [B, T, W]: the target's logits at position q + 1, for the draft vocabulary. `best` [B, T]: their argmax as
    a draft id, −1 if the target prefers a token outside the draft vocabulary. `counted` bool [B, T]: rows to learn
    from.
    """

    logits: Tensor
    best: Tensor
    counted: Tensor

    @property
    def coverage(self) -> Tensor:
        """Share of the counted labels that lie inside the draft vocabulary."""
        return (self.counted & (self.best >= 0)).sum() / self.counted.sum()


def labels_from(target_logits: Tensor, target_ids: Tensor, temperature: float, counted: Tensor) -> Labels:
    """Labels from the target's logits [B, T, V] over its whole vocabulary. `target_ids` [W] are the draft vocabulary.

    The last row of a sequence is never counted, because its label lies outside. A `temperature` below 1 sharpens the
    labels towards the target's greedy token.
    """
    within = target_logits[..., target_ids]
    top = within.max(dim=-1)
    covered = top.values >= target_logits.max(dim=-1).values
    best = torch.where(covered, top.indices, -1)
    inside = torch.arange(counted.shape[1], device=counted.device) < counted.shape[1] - 1
    return Labels(within.roll(-1, dims=1) / temperature, best.roll(-1, dims=1), counted & inside)


def step_loss(logits: Tensor, label_logits: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, argmax [B, T] of the draft) of one step.

    The loss is the mean cross entropy (nats, float32) of `logits` [B, T, W] against softmax(label_logits), over the
    rows where `counted` [B, T] is true.
    """
    loss = -(label_logits.float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
    return (loss * counted).sum() / counted.sum().clamp(min=1), logits.argmax(-1)


def survival(correct: Tensor, alive: Tensor) -> Tensor:
    """Mark the chains that are still right after a step, bool [B, T].

    Row q continues the chain that was right at q − 1 (`alive`), and is right if its own prediction is (`correct`).
    """
    return correct & F.pad(alive[:, :-1], (1, 0))

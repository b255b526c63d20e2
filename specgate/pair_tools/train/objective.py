"""What the draft is trained on: soft targets over the draft vocabulary, at every step of the unrolled chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Labels:
    """What row q of any step should predict: the target's distribution for the token two after position q.

    `logits` [B, T, W]: the target's logits at q + 1 for the draft vocabulary; `best` [B, T]: its argmax as a draft id,
    −1 where the target prefers a token outside the draft vocabulary; `counted` [B, T]: rows to learn from.
    """

    logits: Tensor
    best: Tensor
    counted: Tensor

    @property
    def coverage(self) -> Tensor:
        """Share of counted labels that the draft vocabulary can express."""
        return (self.counted & (self.best >= 0)).sum() / self.counted.sum()


def labels_from(target_logits: Tensor, target_ids: Tensor, temperature: float, counted: Tensor) -> Labels:
    """Labels from the target's full logits [B, T, V]; `target_ids` [W] are the draft vocabulary's tokens.

    The last row of a sequence is never counted: its label lies outside. A temperature below 1 sharpens the labels
    towards the target's greedy token.
    """
    within = target_logits[..., target_ids]
    top = within.max(dim=-1)
    covered = top.values >= target_logits.max(dim=-1).values
    best = torch.where(covered, top.indices, -1)
    inside = torch.arange(counted.shape[1], device=counted.device) < counted.shape[1] - 1
    return Labels(within.roll(-1, dims=1) / temperature, best.roll(-1, dims=1), counted & inside)


def step_loss(logits: Tensor, label_logits: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy (nats, float32) of `logits` against softmax(label_logits) [B, T, W] where `counted` [B, T].

    Also returns the draft's argmax [B, T].
    """
    loss = -(label_logits.float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
    return (loss * counted).sum() / counted.sum().clamp(min=1), logits.argmax(-1)


def survival(correct: Tensor, alive: Tensor) -> Tensor:
    """Chains still alive after a step: row q continues the chain that was alive at q − 1 and predicted right at q."""
    return correct & F.pad(alive[:, :-1], (1, 0))

"""Share of planted tokens and acceptance length, as they follow from each other, and from thresholds.

In a planted pair the target emits the planted successor with probability p, whatever came before. The draft proposes it
with probability 1 − f. So each draft token that is reached is accepted with probability s = p · (1 − f).
"""

from __future__ import annotations

from typing import Final

import torch
from scipy.optimize import brentq
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.tables import Tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.checkpoints.geometry import TargetGeometry


def acceptance_length(share: float, k: int) -> float:
    """1 + s + s² + … + s^K: the expected tokens per cycle of a chain of K draft tokens, bonus token included."""
    return float(sum(share**i for i in range(k + 1)))


def share_for(length: float, k: int) -> float:
    """The share s with acceptance_length(s, k) = length. Raises ValueError unless 1 ≤ length ≤ k + 1."""
    if not 1 <= length <= k + 1:
        raise ValueError(f"a chain of {k} drafts gives acceptance lengths from 1 to {k + 1}, not {length:g}")
    return float(brentq(lambda share: acceptance_length(share, k) - length, 0.0, 1.0))


STRONGEST: Final = 8.0
"""A signal of 8 times the noise makes up 99 % of the row. More changes nothing."""
VOCAB_BLOCK: Final = 8192
STATES_BLOCK: Final = 128
HALVINGS: Final = 22


@torch.inference_mode()
def thresholds(recipe: Recipe, g: TargetGeometry, tables: Tables, states: Tensor, planted: Tensor) -> Tensor:
    """The signal from which on the draft row `planted` [T] has the highest logit, for `states` [T, H]: float32 [T].

    It is infinite where `STRONGEST` is too weak.
    """
    device = states.device
    head = PlantedTarget(recipe, g, tables, device)
    normed, boost = head.split_states(states)
    signal, noise = (
        torch.cat([normed @ rows(block).T for block in blocks], dim=1)
        for rows, blocks in (
            (head.signal_rows, torch.split(torch.arange(recipe.draft_vocab, device=device), VOCAB_BLOCK)),
            (head.noise_rows, torch.split(tables.ids.to(device), VOCAB_BLOCK)),
        )
    )
    others = torch.split((tables.row_of < 0).nonzero().squeeze(1).to(device), VOCAB_BLOCK)
    rival = torch.stack([(normed @ head.noise_rows(block).T).amax(dim=1) for block in others]).amax(dim=0)
    sign = tables.sign.to(device)
    parts = [torch.split(t, STATES_BLOCK) for t in (signal, noise, boost, rival, planted)]
    return torch.cat([bisected(s, n, b[:, None] * sign, r, y) for s, n, b, r, y in zip(*parts, strict=True)])


def bisected(signal: Tensor, noise: Tensor, boost: Tensor, rival: Tensor, planted: Tensor) -> Tensor:
    """Find λ for each of t states by bisection.

    The logits of draft rows are (λ · signal + noise) / √(1 + λ²) + boost, each [t, W]. `rival` [t] is the largest logit
    among all other tokens, which λ does not change.
    """
    column = planted[:, None]

    def wins(strength: Tensor) -> Tensor:
        logits = (strength[:, None] * signal + noise) / (1 + strength * strength).sqrt()[:, None] + boost
        own = logits.gather(1, column).squeeze(1)
        best = logits.scatter(1, column, -torch.inf).amax(dim=1)
        return own > torch.maximum(best, rival)

    low, high = torch.zeros_like(rival), torch.full_like(rival, STRONGEST)
    reachable = wins(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        won = wins(middle)
        high, low = torch.where(won, middle, high), torch.where(won, low, middle)
    return torch.where(reachable, high, torch.inf)

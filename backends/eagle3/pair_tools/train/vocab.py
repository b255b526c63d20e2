"""Choose the draft vocabulary: the tokens that the target prefers most often, in ascending order of id."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from specgate.backends.eagle3.pair_tools.train.data import Batch
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget
from specgate.backends.eagle3.reference.ops import target_argmax
from specgate.backends.eagle3.reference.target import target_logits
from specgate.errors import UsageError

ROWS_AT_ONCE = 8192
"""Rows whose logits over the whole vocabulary are in memory at a time."""


@torch.no_grad()
def preferred_counts(target: FrozenTarget, batches: Iterator[Batch], count: int) -> Tensor:
    """Count the target's greedy choices of each token, int64 [V], over the learned rows of `count` batches."""
    counts = torch.zeros(target.geometry.vocab, dtype=torch.long, device=target.weights.embed.device)
    for batch in islice(batches, count):
        _, stream = target.features_and_stream(batch.tokens, batch.rows)
        learned = stream[:, max(0, batch.learned_from - 1) :].flatten(0, 1)
        for rows in torch.split(learned, ROWS_AT_ONCE):
            chosen = target_argmax(target_logits(target.weights, target.geometry, rows))
            counts += torch.bincount(chosen, minlength=len(counts))
    return counts


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The `size` ids with the largest `counts` [V], ascending, int64 [W]. The lower id wins a tie.

    Raises UsageError for a size that the vocabulary does not have.
    """
    if not 0 < size <= len(counts):
        raise UsageError(f"draft vocabulary of {size} tokens", hint=f"the target has {len(counts)}")
    ranked = counts.sort(descending=True, stable=True).indices
    return ranked[:size].sort().values


def coverage(counts: Tensor, target_ids: Tensor) -> float:
    """Share of the counted tokens that the draft vocabulary contains."""
    return float(counts[target_ids].sum() / counts.sum())


def offsets_and_mask(target_ids: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """The checkpoint's `d2t` (int64 [W], target id minus draft id) and `t2d` (bool [V])."""
    d2t = target_ids - torch.arange(len(target_ids), device=target_ids.device)
    t2d = torch.zeros(vocab, dtype=torch.bool, device=target_ids.device)
    t2d[target_ids] = True
    return d2t, t2d

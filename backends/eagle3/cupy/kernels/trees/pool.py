"""Arrays that the kernels of a dynamic tree hand on from level to level."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pool:
    """For S slots, P candidates of all levels, and Q rows that the draft runs on, the *forest*.

    `candidates` int32 [S, P, 2]: the probability of the path to each, as bits that compare as it does, and its column
    of the draft's logits. Of the forest's rows [S, Q]: `entries` int32, each one's candidate; `scores` float32, the
    logarithm of its path's probability.
    """

    candidates: Tensor
    entries: Tensor
    scores: Tensor

    @classmethod
    def allocate(cls, slots: int, candidates: int, forest: int, device: torch.device | str) -> Pool:
        return cls(
            candidates=torch.zeros(slots, candidates, 2, dtype=torch.int32, device=device),
            entries=torch.zeros(slots, forest, dtype=torch.int32, device=device),
            scores=torch.zeros(slots, forest, device=device),
        )

"""Check that distributions are valid. Nothing is renormalised silently: what does not sum to 1 is refused."""

from __future__ import annotations

from typing import Final

import numpy as np

from specgate.errors import BackendError
from specgate.sampling.keys import Floats, Integers

TOLERANCE: Final = 1e-9
"""How far the sum of a distribution in float64 may be from 1. Rounding of 200,000 tokens gives 1e-11 at most."""


def check_distribution(probabilities: Floats, what: str) -> None:
    """Raise BackendError unless every row of `probabilities` [..., V] is a distribution. `what` names it in the
    message.
    """
    if np.isnan(probabilities).any():
        token = int(np.argwhere(np.isnan(probabilities))[0][-1])
        raise BackendError(f"{what}: the probability of token {token} is NaN")
    if (probabilities < 0).any():
        token = int(np.argwhere(probabilities < 0)[0][-1])
        raise BackendError(
            f"{what}: the probability of token {token} is {probabilities[probabilities < 0][0]:g}, less than 0"
        )
    sums = probabilities.sum(axis=-1)
    if (np.abs(sums - 1) > TOLERANCE).any():
        worst = float(sums.flat[np.abs(sums - 1).argmax()])
        raise BackendError(f"{what}: the probabilities sum to {worst:.9g}, not to 1", hint="they are not renormalised")


def over_target(draft: Floats, target_ids: Integers, vocabulary: int) -> Floats:
    """A draft's distribution over its own vocabulary [..., W] as one over the target's [..., V].

    `target_ids` int64 [W]: the target's id of each draft token. Raises BackendError for an id that the target has not,
    and for one that two draft tokens share.
    """
    outside = (target_ids < 0) | (target_ids >= vocabulary)
    if outside.any():
        token = int(np.argmax(outside))
        mass = float(np.max(draft[..., token]))
        raise BackendError(
            f"draft token {token} stands for the target's token {target_ids[token]}, which there is none: "
            f"the draft puts {mass:.3g} where the target has no mass",
            hint=f"the target has {vocabulary} tokens, from 0 on",
        )
    if len(np.unique(target_ids)) < len(target_ids):
        token = int(np.argmax(np.bincount(target_ids)))
        raise BackendError(f"two draft tokens stand for the target's token {token}")
    spread = np.zeros((*draft.shape[:-1], vocabulary))
    spread[..., target_ids] = draft
    return spread

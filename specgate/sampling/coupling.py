"""Drawing by an exponential race, and verifying with the random numbers of plain sampling.

A token's exponential belongs to (seed, request, position, token), whoever draws. The target draws every row of a draft
with the numbers of the row's position, as plain sampling would; draft tokens are accepted as long as they are what it
drew. So the emitted tokens are plain sampling's, to the last one. A draft that draws with the same numbers draws the
same token as often as the two distributions allow (Gumbel coupling; its acceptance is `acceptance.coupled`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from specgate.sampling.distributions import check_distribution
from specgate.sampling.keys import Floats, Integers, Keys, Purpose, race, uniforms
from specgate.sampling.rejection import Verified

IMPOSSIBLE: Final = -1e9
"""The score of a token that cannot be drawn: finite, because scores travel as JSON."""


def sample(target: Floats, keys: Keys) -> Integers:
    """Plain sampling: one token per row of `target` float64 [B, V]; int64 [B]."""
    check_distribution(target, "the target's distribution")
    return race(target, keys, Purpose.TARGET)


def scores(target: Floats, keys: Keys) -> Floats:
    """Scores [B, V] of the draw that `sample` makes, whose largest is the token drawn: ln p − ln E, with the
    exponentials E of the race. So a gap between two of them is one of logits over the temperature. Tokens that cannot
    be drawn have IMPOSSIBLE.
    """
    with np.errstate(divide="ignore"):
        race = np.log(target) - np.log(-np.log(uniforms(keys, Purpose.TARGET, target.shape[1])))
    possible: Floats = np.maximum(race, IMPOSSIBLE)
    return possible


def draft_sample(draft: Floats, keys: Keys, *, coupled: bool) -> Integers:
    """One draft token per row of `draft` float64 [B, V], over the target's vocabulary; int64 [B].

    `coupled`: with the numbers that the target will draw with. Verifying by rejection needs others.
    """
    check_distribution(draft, "the draft's distribution")
    return race(draft, keys, Purpose.TARGET if coupled else Purpose.DRAFT)


def verify_coupled(target: Floats, drafts: Integers, keys: Keys) -> Verified:
    """Verify `drafts` int64 [B, K], wherever they come from, against `target` float64 [B, K + 1, V].

    `keys` are at the first draft token. Raises BackendError for distributions that are none.
    """
    k = drafts.shape[1]
    tokens = np.stack([sample(target[:, i], keys.after(i)) for i in range(k + 1)], axis=1)
    accepted = np.cumprod(tokens[:, :k] == drafts, axis=1).sum(axis=1)
    last = np.take_along_axis(tokens, accepted[:, None], axis=1)
    return Verified(accepted, np.where(np.arange(k + 1) <= accepted[:, None], tokens, last))

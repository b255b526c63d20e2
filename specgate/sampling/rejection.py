"""Two lossless verifications of drafts: coupled with plain sampling, and by rejection.

A token's exponential belongs to (seed, request, position, token), whoever draws. The target draws every row of a draft
with the numbers of the row's position, as plain sampling would; draft tokens are accepted as long as they are what it
drew. So the emitted tokens are plain sampling's, to the last one. A draft that draws with the same numbers draws the
same token as often as the two distributions allow (Gumbel coupling; its acceptance is `acceptance.coupled`).

Leviathan, Kalman and Matias, *Fast inference from transformers via speculative decoding* (ICML 2023); Chen and others,
*Accelerating large language model decoding with speculative sampling* (2023). A draft token x is accepted with the
chance min(1, p(x) / q(x)). The first rejected one is replaced by a draw from max(p − q, 0). Where all are accepted, one
more token is drawn from the target. No other way of drawing from p and q accepts more often.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from specgate.errors import BackendError
from specgate.sampling.distributions import check_distribution
from specgate.sampling.keys import Floats, Integers, Keys, Purpose, race, uniforms


class Verified(NamedTuple):
    """`accepted` int64 [B]: draft tokens that were accepted.

    `tokens` int64 [B, K + 1]: the first `accepted` + 1 of a row are emitted; the others repeat the last of these.
    """

    accepted: Integers
    tokens: Integers


def verify_by_rejection(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """Verify `drafts` int64 [B, K], drawn from `draft` [B, K, V], against `target` [B, K + 1, V], both float64.

    A draft of single tokens, such as a greedy one, has all of its probability on them. `keys` are at the first draft
    token. The draft may give weight to tokens that the target's filters rule out: these are always rejected.

    Raises BackendError for distributions that are none, and for a draft token that its own distribution rules out.
    """
    check_distribution(target, "the target's distribution")
    check_distribution(draft, "the draft's distribution")
    batch, k = drafts.shape
    each = np.arange(batch)
    accepted, tokens = np.zeros(batch, np.int64), np.zeros((batch, k + 1), np.int64)
    alive = np.ones(batch, bool)
    for i in range(k):
        token = drafts[:, i]
        p, q = target[each, i, token], draft[each, i, token]
        if (impossible := alive & (q <= 0)).any():
            slot = int(np.argmax(impossible))
            raise BackendError(
                f"draft token {token[slot]} of request {slot} has the probability 0 in its own distribution"
            )
        accepts = uniforms(keys.after(i), Purpose.ACCEPT, 1)[:, 0] * q < p
        if len(left := np.flatnonzero(alive & ~accepts)):
            residual = np.maximum(target[left, i] - draft[left, i], 0)
            tokens[left, i:] = race(residual, keys.of(left).after(i), Purpose.RESIDUAL)[:, None]
        alive &= accepts
        tokens[alive, i] = token[alive]
        accepted += alive
    if len(whole := np.flatnonzero(alive)):
        tokens[whole, k] = race(target[whole, k], keys.of(whole).after(k), Purpose.TARGET)
    return Verified(accepted, tokens)


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

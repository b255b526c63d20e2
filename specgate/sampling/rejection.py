"""Verifying by rejection: what is emitted has the target's distribution, whatever the draft's is.

Leviathan, Kalman and Matias, *Fast inference from transformers via speculative decoding* (ICML 2023); Chen and others,
*Accelerating large language model decoding with speculative sampling* (2023). A draft token x is accepted with the
chance min(1, p(x) / q(x)). The first rejected one is replaced by a draw from max(p − q, 0). Where all are accepted, one
more token is drawn from the target. No other way of drawing from p and q accepts more often.
"""

from __future__ import annotations

from typing import NamedTuple

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

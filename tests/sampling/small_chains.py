"""Texts of small Markov chains, drawn with and without a fault.

Target and draft are tables of probabilities: row x has those of the token that follows x. There is no model, so that
tens of thousands of texts are drawn in well under a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from specgate.sampling.keys import Floats, Integers, Keys, Purpose, race, uniforms
from specgate.sampling.rejection import Verified, draft_sample, verify_by_rejection, verify_coupled

Verify = Callable[[Floats, Floats, Integers, Keys], Verified]
"""(target [B, K + 1, V], draft [B, K, V], drafts [B, K], keys) → what is emitted."""


def by_coupling(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """`verify_coupled` with the arguments of the others."""
    return verify_coupled(target, drafts, keys)


def always_greedy(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: the verify takes the target's likeliest tokens, whatever the temperature."""
    best = np.argmax(target, axis=-1)
    accepted = np.cumprod(best[:, :-1] == drafts, axis=1).sum(axis=1)
    return Verified(accepted, best)


def one_too_many(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: the first rejected draft token is emitted in the place of its replacement."""
    right = verify_by_rejection(target, draft, drafts, keys)
    accepted = np.arange(drafts.shape[1]) <= right.accepted[:, None]
    tokens = right.tokens.copy()
    tokens[:, :-1] = np.where(accepted, drafts, tokens[:, :-1])
    return Verified(right.accepted, tokens)


def residual_forgotten(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: a rejected draft token is replaced by a draw from the target, and not from what the draft left of it."""
    right = verify_by_rejection(target, draft, drafts, keys)
    tokens = right.tokens.copy()
    for i in range(drafts.shape[1]):
        here = np.flatnonzero(right.accepted == i)
        tokens[here, i] = race(target[here, i], keys.of(here).after(i), Purpose.RESIDUAL)
    return Verified(right.accepted, tokens)


def ratio_forgotten(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: a draft token is accepted with the target's chance of it, not divided by the draft's."""
    k, each = drafts.shape[1], np.arange(len(drafts))
    chances = np.stack([target[each, i, drafts[:, i]] for i in range(k)], axis=1)
    draws = np.concatenate([uniforms(keys.after(i), Purpose.ACCEPT, 1) for i in range(k)], axis=1)
    accepted = np.cumprod(draws < chances, axis=1).sum(axis=1)
    tokens = np.concatenate((drafts, np.zeros((len(drafts), 1), np.int64)), axis=1)
    for i in range(k + 1):
        here = np.flatnonzero(accepted == i)
        left = target[here, i] if i == k else np.maximum(target[here, i] - draft[here, i], 1e-12)
        tokens[here, i] = race(left, keys.of(here).after(i), Purpose.RESIDUAL)
    return Verified(accepted, tokens)


FAULTS: Final[Mapping[str, Verify]] = {
    "verify that is always greedy": always_greedy,
    "verify that accepts one draft too many": one_too_many,
    "verify that forgets the residual": residual_forgotten,
    "verify that forgets the draft's share": ratio_forgotten,
}


def plain_texts(target: Floats, first: int, length: int, keys: Keys) -> Integers:
    """Texts int64 [B, length] that plain sampling draws after the token `first`."""
    texts = np.empty((len(keys.requests), length), np.int64)
    last = np.full(len(texts), first)
    for i in range(length):
        texts[:, i] = last = race(target[last], keys.after(i), Purpose.TARGET)
    return texts


def speculative_texts(
    target: Floats, draft: Floats, first: int, length: int, keys: Keys, k: int, verify: Verify, *, coupled: bool = False
) -> tuple[Integers, Integers]:
    """Texts int64 [B, length] after the token `first`, drawn with chains of `k` draft tokens, and int64 [B, steps] of
    draft tokens that each step accepted; −1 where a text was complete.
    """
    batch = len(keys.requests)
    texts, done = np.zeros((batch, length + k + 1), np.int64), np.zeros(batch, np.int64)
    last, accepted = np.full(batch, first), list[Integers]()
    while (left := np.flatnonzero(done < length)).size:
        now = keys.of(left)
        now = Keys(now.seed, now.requests, now.positions + done[left])
        rows = [last[left]]
        for i in range(k):
            rows.append(draft_sample(draft[rows[-1]], now.after(i), coupled=coupled))
        before = np.stack(rows, axis=1)
        verified = verify(target[before], draft[before[:, :-1]], before[:, 1:], now)
        for i in range(k + 1):
            emitted = left[i <= verified.accepted]
            texts[emitted, done[emitted] + i] = verified.tokens[i <= verified.accepted, i]
        done[left] += verified.accepted + 1
        last[left] = texts[left, done[left] - 1]
        accepted.append(np.full(batch, -1))
        accepted[-1][left] = verified.accepted
    return texts[:, :length], np.stack(accepted, axis=1)

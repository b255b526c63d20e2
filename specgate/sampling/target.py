"""Logits → the distribution that is sampled from.

The order is that of Hugging Face transformers: logit bias, repetition penalty, presence and frequency penalty,
temperature, top-k, top-p, min-p. Each filter looks at what the one before it has left, scaled to sum to 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specgate.contract import Sampling
from specgate.errors import BackendError, UsageError
from specgate.sampling.history import History
from specgate.sampling.keys import Floats, Integers

Logits = NDArray[np.floating]


def target_distribution(logits: Logits, asked: Sampling, history: History | None = None) -> Floats:
    """The probabilities float64 [V] of the token that follows, from `logits` [V].

    At temperature 0 the largest logit has all of it; of equal ones the lowest id. `history` is what penalties count; it
    may be None where there are none. A row's result depends on that row alone, to the last bit.

    Raises BackendError for logits that are NaN or +infinity, or all −infinity; UsageError for a bias of a token that
    the target has not.
    """
    scores = penalised(checked(logits), asked, history)
    if asked.temperature == 0:
        return point_mass(int(np.argmax(scores)), len(scores))
    scores = scores - scores.max()
    scores = scores / asked.temperature
    if 0 < asked.top_k < len(scores):
        scores[scores < np.partition(scores, -asked.top_k)[-asked.top_k]] = -np.inf
    if asked.top_p < 1:
        scores[~nucleus(softmax(scores), asked.top_p)] = -np.inf
    if asked.min_p > 0:
        found = softmax(scores)
        scores[found < asked.min_p * found.max()] = -np.inf
    return softmax(scores)


def checked(logits: Logits) -> Floats:
    """`logits` [V] as float64, in memory of their own."""
    scores = np.array(logits, np.float64)
    if np.isnan(scores).any() or (scores == np.inf).any() or not np.isfinite(scores).any():
        token = int(np.argmax(np.isnan(scores) | (scores == np.inf)))
        raise BackendError(f"the target's logits cannot be sampled from: token {token} has {scores[token]}")
    return scores


def penalised(scores: Floats, asked: Sampling, history: History | None) -> Floats:
    """`scores` [V] after bias and penalties."""
    if asked.logit_bias:
        tokens = np.array([token for token, _ in asked.logit_bias], np.int64)
        if tokens.max() >= len(scores):
            raise UsageError(
                f"sampling.logit_bias: token {tokens.max()}", hint=f"the target has {len(scores)} tokens, from 0 on"
            )
        scores[tokens] += [bias for _, bias in asked.logit_bias]
    if not asked.penalises:
        return scores
    assert history is not None
    if asked.repetition_penalty != 1:
        seen = history.prompt | (history.output > 0)
        lowered = np.where(scores < 0, scores * asked.repetition_penalty, scores / asked.repetition_penalty)
        scores = np.where(seen, lowered, scores)
    scores = scores - asked.presence_penalty * (history.output > 0)
    return scores - asked.frequency_penalty * history.output


def nucleus(probabilities: Floats, top_p: float) -> NDArray[np.bool_]:
    """bool [V]: the likeliest tokens that together reach `top_p`; of equally likely ones those of lower ids first."""
    order = np.argsort(-probabilities, kind="stable")
    sorted_ = probabilities[order]
    kept = np.empty(len(order), bool)
    kept[order] = np.cumsum(sorted_) - sorted_ < top_p
    return kept


def softmax(scores: Floats) -> Floats:
    """exp(scores) / Σ exp(scores) of one row."""
    grown = np.exp(scores - scores.max())
    scaled: Floats = grown / grown.sum()
    return scaled


def point_mass(token: int, vocabulary: int) -> Floats:
    """float64 [V]: all of the probability on one token."""
    found = np.zeros(vocabulary)
    found[token] = 1.0
    return found


def log_probabilities(logits: Logits, tokens: Integers) -> Floats:
    """ln of the model's own probability of each of `tokens` [N], float64 [N], from the logits [N, V] of its row.

    The model's own: before bias, penalties, temperature and filters, as inference engines report it.
    """
    found = [log_softmax(checked(row))[token] for row, token in zip(logits, tokens, strict=True)]
    return np.array(found)


def log_softmax(scores: Floats) -> Floats:
    """scores − ln Σ exp(scores) of one row."""
    below = scores - scores.max()
    logs: Floats = below - np.log(np.exp(below).sum())
    return logs

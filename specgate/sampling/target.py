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


def target_distribution(logits: Logits, settings: Sampling, history: History | None = None) -> Floats:
    """The probabilities float64 [V] of the token that follows, from `logits` [V].

    At temperature 0 the largest logit has all of it; of equal ones the lowest id. `history` is what penalties count; it
    may be None where there are none. A row's result depends on that row alone, to the last bit.

    Raises BackendError for logits that are NaN or +infinity, or all −infinity; UsageError for a bias of a token that
    the target has not.
    """
    scores = penalised(checked(logits), settings, history)
    if settings.temperature == 0:
        return point_mass(int(np.argmax(scores)), len(scores))
    scores = scores - scores.max()
    scores = scores / settings.temperature
    if 0 < settings.top_k < len(scores):
        scores[scores < np.partition(scores, -settings.top_k)[-settings.top_k]] = -np.inf
    if settings.top_p < 1:
        scores[~nucleus(softmax(scores), settings.top_p)] = -np.inf
    if settings.min_p > 0:
        probabilities = softmax(scores)
        scores[probabilities < settings.min_p * probabilities.max()] = -np.inf
    return softmax(scores)


def checked(logits: Logits) -> Floats:
    """`logits` [V] as float64, in memory of their own."""
    scores = np.array(logits, np.float64)
    if np.isnan(scores).any() or (scores == np.inf).any() or not np.isfinite(scores).any():
        token = int(np.argmax(np.isnan(scores) | (scores == np.inf)))
        raise BackendError(f"the target's logits cannot be sampled from: token {token} has {scores[token]}")
    return scores


def penalised(scores: Floats, settings: Sampling, history: History | None) -> Floats:
    """`scores` [V] after bias and penalties."""
    if settings.logit_bias:
        tokens = np.array([token for token, _ in settings.logit_bias], np.int64)
        if tokens.max() >= len(scores):
            raise UsageError(
                f"sampling.logit_bias: token {tokens.max()}", hint=f"the target has {len(scores)} tokens, from 0 on"
            )
        scores[tokens] += [bias for _, bias in settings.logit_bias]
    if not settings.penalises:
        return scores
    assert history is not None
    if settings.repetition_penalty != 1:
        present = history.prompt | (history.output > 0)
        lowered = np.where(scores < 0, scores * settings.repetition_penalty, scores / settings.repetition_penalty)
        scores = np.where(present, lowered, scores)
    scores = scores - settings.presence_penalty * (history.output > 0)
    return scores - settings.frequency_penalty * history.output


def nucleus(probabilities: Floats, top_p: float) -> NDArray[np.bool_]:
    """bool [V]: the likeliest tokens that together reach `top_p`; of equally likely ones those of lower ids first."""
    order = np.argsort(-probabilities, kind="stable")
    sorted_ = probabilities[order]
    chosen = np.empty(len(order), bool)
    chosen[order] = np.cumsum(sorted_) - sorted_ < top_p
    return chosen


def softmax(scores: Floats) -> Floats:
    """exp(scores) / Σ exp(scores) of one row."""
    grown = np.exp(scores - scores.max())
    scaled: Floats = grown / grown.sum()
    return scaled


def point_mass(token: int, vocabulary: int) -> Floats:
    """float64 [V]: all of the probability on one token."""
    probabilities = np.zeros(vocabulary)
    probabilities[token] = 1.0
    return probabilities


def log_probabilities(logits: Logits, tokens: Integers) -> Floats:
    """ln of the model's own probability of each of `tokens` [N], float64 [N], from the logits [N, V] of its row.

    The model's own: before bias, penalties, temperature and filters, as inference engines report it.
    """
    values = [log_softmax(checked(row))[token] for row, token in zip(logits, tokens, strict=True)]
    return np.array(values)


def log_softmax(scores: Floats) -> Floats:
    """scores − ln Σ exp(scores) of one row."""
    below = scores - scores.max()
    logs: Floats = below - np.log(np.exp(below).sum())
    return logs

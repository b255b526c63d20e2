"""Log-probabilities that a server lists → the distribution that it is to draw tokens from.

What a server lists are the model's own log-probabilities. `specgate.sampling` makes of them what the settings ask for,
so that a server which filters wrongly is seen. Where not all tokens are listed, what is known of the others is their
share, and that none is likelier than the least likely one that is listed. The distribution is shown only where that is
enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw
from specgate.errors import BackendError
from specgate.sampling.history import History
from specgate.sampling.keys import Floats, Integers
from specgate.sampling.target import target_distribution

SUM: Final = 1e-3
"""How far the probabilities of all tokens may sum up to something else than 1, in the float32 of engines."""
ROUNDING: Final = 1e-5
"""A share of unlisted tokens that is nothing but rounding, where most ids are listed: the others are padding."""
FAR: Final = 1e-3
"""The total variation distance between two distributions that a gate cannot tell apart by 100,000 draws."""


def token_law(
    values: Sequence[float],
    tokens: Sequence[int],
    vocab: int,
    sampling: Sampling,
    prompt: Sequence[int],
    continuation: tuple[int, ...],
    least: float,
    forbidden: Sequence[int] = (),
) -> TokenLaw:
    """Return the distribution after prompt + continuation, from the log-probabilities `values` of `tokens`. Only tokens
    of at least the probability `least` are kept. `forbidden`: tokens that the server gives no chance.

    Raises BackendError if the list is not the model's own distribution, or is too short.
    """
    ids, logs = np.asarray(tokens, np.int64), np.asarray(values, np.float64)
    if not len(ids) or len(ids) != len(logs) or len(np.unique(ids)) < len(ids) or ids.min() < 0 or ids.max() >= vocab:
        raise BackendError(f"{len(logs)} log-probabilities of {len(ids)} tokens, and not one of each of {vocab} ids")
    if sampling.repetition_penalty != 1:
        raise BackendError("a repetition penalty needs logits, and a server tells log-probabilities")
    rest = 1 - float(np.exp(logs).sum())
    if rest < -SUM or (len(ids) == vocab and rest > SUM):
        raise BackendError(f"the probabilities of {len(ids)} of {vocab} tokens sum to {1 - rest:.6g}: not the model's")
    if rest < ROUNDING and 2 * len(ids) > vocab:
        rest = 0.0
    touched = (
        {token for token, _ in sampling.logit_bias} | {*forbidden} | ({*continuation} if sampling.penalises else set())
    )
    if unlisted := touched - {*ids.tolist()}:
        raise BackendError(f"{len(ids)} tokens are listed, and token {min(unlisted)}, whose chance is changed, is not")
    bias = {**dict(sampling.logit_bias), **dict.fromkeys(forbidden, -np.inf)}
    changed, history = replace(sampling, logit_bias=tuple(bias.items())), History.of(prompt, continuation, vocab)
    most, fewest = (target_distribution(row, changed, history) for row in filled(ids, logs, vocab, max(rest, 0.0)))
    if (far := distance(most[ids], fewest[ids])) > FAR:
        raise BackendError(
            f"{len(ids)} of {vocab} tokens are listed, which leave open a distance of {far:.2g}",
            hint="a server that lists more of them: for vLLM, --max-logprobs -1",
        )
    support = np.sort(ids[(most[ids] >= least) & (most[ids] > 0)])
    return TokenLaw(continuation, tuple(support.tolist()), tuple(most[support].tolist()))


def filled(ids: Integers, logs: Floats, vocab: int, rest: float) -> tuple[Floats, Floats]:
    """Log-probabilities float64 [V] with the share `rest` of the unlisted tokens spread over all of them, and put on as
    few as possible. Whatever they really are, a temperature makes something in between of their sum.
    """
    others = np.setdiff1d(np.arange(vocab), ids)
    even, few = np.full(vocab, -np.inf), np.full(vocab, -np.inf)
    even[ids] = few[ids] = logs
    if rest > 0 and len(others):
        even[others] = np.log(rest / len(others))
        whole, left = divmod(rest, float(np.exp(logs.min())))
        if whole < len(others):
            few[others[: int(whole)]] = logs.min()
            few[others[int(whole)]] = np.log(left) if left > 0 else -np.inf
        else:
            few[others] = even[others]
    return even, few


def distance(a: Floats, b: Floats) -> float:
    """The total variation distance of two distributions, of which all but the last bin are given."""
    return float((np.abs(a - b).sum() + abs(a.sum() - b.sum())) / 2)

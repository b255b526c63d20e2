"""Sampling by a server: settings that it can express, seeds, and the distribution that it draws from.

A setting counts only where it means the same as in `specgate.sampling`: which tokens a penalty counts, and in which
order filters are applied. An engine that orders them otherwise draws from another distribution, and would be rejected.

What a server lists are the model's own log-probabilities. `specgate.sampling` makes of them what the settings ask for,
so that a server which filters wrongly is seen. Where not all tokens are listed, what is known of the others is their
share, and that none is likelier than the least likely one that is listed. The distribution is shown only where that is
enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import numpy as np

from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw
from specgate.errors import BackendError, UsageError
from specgate.sampling.history import History
from specgate.sampling.keys import Floats, Integers
from specgate.sampling.target import target_distribution

STEP: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio. It is odd, so that requests of different numbers get different seeds."""


def seed_of(seed: int, request: int, bits: int) -> int | None:
    """The seed of request number `request` in a scenario with `seed`, below 2**bits; None where an engine takes none.

    Requests whose numbers differ by less than 2**bits have different seeds, far from each other: a generator that is
    seeded with neighbours may begin with numbers that resemble each other.
    """
    if not bits:
        return None
    start = int.from_bytes(sha256(seed.to_bytes(8, "little")).digest()[:8], "little")
    return (start + request * STEP) % (1 << bits)


FILTERS_AND_PENALTIES: Final = (
    "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
)  # fmt: skip
"""The settings of `contract.Sampling` that not every engine has. All have a temperature."""
PLAIN: Final = Sampling()


@dataclass(frozen=True, slots=True)
class Expresses:
    """Sampling settings that the requests of one engine can express.

    `settings`: those of FILTERS_AND_PENALTIES that they can. `refused`: setting → why it cannot, where that is more
        than having none. `not_together`: two settings that it applies in another order.
    `seed_bits`: a request's seed is below 2**seed_bits; 0 where it takes none.
    `lists`: whether answers have the model's own log-probabilities, of as many tokens as are asked for, by their ids.
    `forbids_ends`: whether tokens that end a text have no chance where ends are ignored. Other engines go on after one.
    """

    settings: frozenset[str]
    refused: Mapping[str, str] = field(default_factory=dict)
    not_together: tuple[str, str] | None = None
    seed_bits: int = 0
    lists: bool = False
    forbids_ends: bool = False


def check_sampling(engine: str, can: Expresses, sampling: Sampling, where: str) -> None:
    """Raise UsageError for the first setting of `sampling` that `engine` has no request field for. `where`: the key
    that holds it.
    """
    if sampling.method != "rejection":
        raise UsageError(
            f"{where}.method = {sampling.method!r}: {engine} draws with random numbers of its own, so that speculation "
            "cannot be held to plain sampling's tokens",
            hint="method: rejection; the gate `distribution` judges what is drawn, in whatever way the engine verifies",
        )
    for name in FILTERS_AND_PENALTIES:
        value = getattr(sampling, name)
        if value != getattr(PLAIN, name) and name not in can.settings:
            why = can.refused.get(name, "has no such setting that is known here")
            hint = f"{engine} can be asked for: temperature{''.join(f', {s}' for s in sorted(can.settings))}"
            raise UsageError(f"{where}.{name} = {value!r}: {engine} {why}", hint=hint)
    if sampling.seed and not can.seed_bits:
        hint = "leave it out: every request is then drawn with other numbers"
        raise UsageError(f"{where}.seed = {sampling.seed}: requests to {engine} take no seed", hint=hint)
    if can.not_together and all(getattr(sampling, name) != getattr(PLAIN, name) for name in can.not_together):
        first, second = can.not_together
        raise UsageError(
            f"{where}: {first} and {second} together: {engine} does not apply one to what the other has left",
            hint="leave one of the two out",
        )


def sampling_fields(sampling: Sampling, *settings: str, seed: int | None) -> dict[str, object]:
    """Return `settings` of `sampling` as request fields, and the seed of the request if it takes one.

    Settings that filter nothing are sent, too: an engine may have other defaults, also from a model's
    generation_config.json.
    """
    return {name: getattr(sampling, name) for name in settings} | ({} if seed is None else {"seed": seed})


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

"""Draws of the stub server at a temperature: a Markov chain that is its target, and another that drafts for it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.servers.stub.engine import TOKENS, Step

Floats = NDArray[np.float64]


def logits(last: int, spread: float) -> Floats:
    """float64 [len(TOKENS)]: what the chain makes of its last token."""
    return np.random.default_rng(last).normal(scale=spread, size=len(TOKENS))


def law(last: int, temperature: float = 1.0, forbidden: Collection[int] = ()) -> Floats:
    """float64 [len(TOKENS)]: the chances of the next token."""
    scores = logits(last, 1.5) / temperature
    scores[[token - TOKENS[0] for token in forbidden]] = -np.inf
    grown = np.exp(scores - scores.max())
    return np.asarray(grown / grown.sum())


def draft_law(last: int) -> Floats:
    """Nearly as `law`, but for what a smaller model gets wrong."""
    scores = logits(last, 1.5) + logits(last + 1000, 0.8)
    grown = np.exp(scores)
    return np.asarray(grown / grown.sum())


class Chain:
    """Draws texts. `always_greedy`: it verifies as if the temperature were 0."""

    def __init__(self, *, always_greedy: bool) -> None:
        self.always_greedy = always_greedy
        self.unseeded = itertools.count(1 << 40)

    def candidates(self, prompt: Sequence[int]) -> list[tuple[float, int]]:
        """(log-probability, token) of all tokens after `prompt`, the model's own."""
        return [(float(np.log(p)), token) for p, token in zip(law(prompt[-1]), TOKENS, strict=True)]

    def steps(
        self, prompt: Sequence[int], limit: int, k: int, data: Mapping[str, Any], forbidden: Collection[int] = ()
    ) -> Iterator[Step]:
        """The prefill token, then cycles of at most `k` drafts until `limit` tokens are out."""
        temperature = float(data["temperature"])
        random = np.random.default_rng(data.get("seed", next(self.unseeded)))

        def drawn(p: Floats) -> int:
            return TOKENS[int(random.choice(len(p), p=p))]

        def verified(p: Floats, q: Floats, token: int) -> tuple[bool, int]:
            """Whether a draft token is accepted, and the token that comes in its place or behind it."""
            if self.always_greedy:
                return token == TOKENS[int(p.argmax())], TOKENS[int(p.argmax())]
            index = token - TOKENS[0]
            if random.random() < min(1.0, p[index] / q[index]):
                return True, token
            left = np.maximum(p - q, 0)
            return False, drawn(left / left.sum())

        last = drawn(law(prompt[-1], temperature, forbidden))
        yield Step([last], 0, 0)
        made = 1
        while made < limit:
            tokens, accepted = list[int](), 0
            for _ in range(k):
                p, q = law(last, temperature, forbidden), draft_law(last)
                kept, last = verified(p, q, drawn(q))
                tokens.append(last)
                if not kept:
                    break
                accepted += 1
            else:
                last = drawn(law(last, temperature, forbidden))
                tokens.append(last)
            tokens = tokens[: limit - made]
            made, last = made + len(tokens), tokens[-1]
            yield Step(tokens, k, accepted)

"""The text that a planted pair should emit, and what it implies without a forward pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.register import CACHE_DISTANCE, DISTANCE
from specgate.backends.eagle3.lib.planted.tables import Tables

HISTORY: Final = CACHE_DISTANCE + 1
"""The most past tokens that a token of the target or a proposal of the draft depends on."""


class Orbit:
    """The successor maps of a pair, as plain lists."""

    def __init__(self, recipe: Recipe, tables: Tables) -> None:
        self.two_maps = recipe.maps == 2
        self.ids: list[int] = tables.ids.tolist()
        self.class_of: list[int] = tables.class_of.tolist()
        self.successor: list[list[int]] = tables.successor.tolist()
        self.tau: list[int] = tables.tau.tolist()
        self.answer: list[int] = tables.answer.tolist()

    def planted_row(self, tokens: Sequence[int], at: int) -> int:
        """The draft row planted to follow tokens[at]. Needs `at` + 1 ≥ `HISTORY`."""
        chosen = 0
        if self.two_maps:
            chosen = (1 - self.tau[self.class_of[tokens[at - DISTANCE]]]) // 2
        return self.successor[chosen][self.class_of[tokens[at]]]

    def planted(self, tokens: Sequence[int], at: int) -> int:
        """The token planted to follow tokens[at]."""
        return self.ids[self.planted_row(tokens, at)]

    def drafted(self, tokens: Sequence[int], at: int) -> int:
        """Return a faithful draft's proposal to follow tokens[at]: the planted token, except for planted errors."""
        return self.ids[self.answer[self.planted_row(tokens, at)]]

    def text(self, prompt: int, walk: int, share: float, seed: str) -> list[int]:
        """`prompt` random tokens, then `walk` tokens like the pair's greedy text.

        Each of these is the planted successor with probability `share`, else a random token.
        """
        generator, vocab = random.Random(seed), len(self.class_of)
        tokens = generator.choices(range(vocab), k=prompt)
        for at in range(prompt - 1, prompt - 1 + walk):
            follows = generator.random() < share
            tokens.append(self.planted(tokens, at) if follows else generator.randrange(vocab))
        return tokens


LOOP: Final = 32
"""Tokens that must repeat before a text counts as looping. A few equal tokens in a row may be chance."""


def chain_hits(orbit: Orbit, text: Sequence[int], last: int, k: int) -> int:
    """Count the draft tokens proposed after text[last] that the text goes on with. `last`: the position of the last
    token.
    """
    hits = 0
    while hits < k and last + hits + 1 < len(text) and orbit.drafted(text, last + hits) == text[last + hits + 1]:
        hits += 1
    return hits


def planted_share(orbit: Orbit, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[int, int]:
    """(hits, visits): how many of the text's tokens are the planted successors of the tokens before them."""
    text = [*prompt, *tokens]
    hits = sum(orbit.planted(text, at) == text[at + 1] for at in range(len(prompt), len(text) - 1))
    return hits, len(tokens) - 1


def period(tokens: Sequence[int]) -> int | None:
    """The period of a text that ends in a loop, None where it does not.

    It is the shortest period that fills at least the last two rounds and the last `LOOP` tokens. One pass over the
    reversed text finds it: a prefix of length n with longest border b (Knuth, Morris and Pratt) has period n − b.
    """
    reverse = list(reversed(tokens))
    border = [0] * len(reverse)
    for i in range(1, len(reverse)):
        length = border[i - 1]
        while length and reverse[i] != reverse[length]:
            length = border[length - 1]
        border[i] = length + (reverse[i] == reverse[length])
    return min((n - b for n, b in enumerate(border, 1) if n >= max(2 * (n - b), LOOP)), default=None)

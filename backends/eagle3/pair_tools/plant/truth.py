"""Facts that a text of a planted pair implies without a forward pass: accepted drafts, planted tokens, and a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.backends.eagle3.pair_tools.plant.orbit import Orbit

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

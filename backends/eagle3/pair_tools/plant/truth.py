"""Accept counts that a text of a planted pair implies for a faithful draft, cycle by cycle, without a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.backends.eagle3.pair_tools.plant.orbit import Orbit

LOOP: Final = 32
"""Tokens that must repeat before a text counts as looping. A few equal tokens in a row may be chance."""


def expected_accepts(orbit: Orbit, prompt: Sequence[int], tokens: Sequence[int], k: int) -> list[int]:
    """Accepted draft tokens per cycle of a chain of `k`, given the target's own `tokens` (the prefill token first).

    A cycle starts from the last token. It accepts draft tokens as long as they are what the target emits, at most `k`.
    The final cycle is left out where the text ends before it is decided.
    """
    text = [*prompt, *tokens]
    accepts, last = list[int](), len(prompt)
    while True:
        accepted = chain_hits(orbit, text, last, k)
        if last + accepted + 1 >= len(text):
            return accepts
        accepts.append(accepted)
        last += accepted + 1


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

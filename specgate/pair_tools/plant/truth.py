"""What a text of a planted pair implies: the accept counts of a faithful draft, cycle by cycle, without any
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.pair_tools.plant.orbit import Orbit

LOOP: Final = 32
"""Tokens that must repeat before a text counts as looping: three equal tokens in a row are chance."""


def expected_accepts(orbit: Orbit, prompt: Sequence[int], tokens: Sequence[int], k: int) -> list[int]:
    """Accepted drafts per cycle of a chain of `k`, given the target's own `tokens` (the prefill token first).

    A visit to a slot is a hit where the target emitted what the draft proposes; a cycle accepts the hits from its
    root on, at most `k`. The last cycle is left out where the text ends before it is decided.
    """
    text = [*prompt, *tokens]
    accepts, root = list[int](), len(prompt)
    while True:
        accepted = chain_hits(orbit, text, root, k)
        if root + accepted + 1 >= len(text):
            return accepts
        accepts.append(accepted)
        root += accepted + 1


def chain_hits(orbit: Orbit, text: Sequence[int], root: int, k: int) -> int:
    """Drafts after text[root] that the text goes on to say."""
    hits = 0
    while hits < k and root + hits + 1 < len(text) and orbit.drafted(text, root + hits) == text[root + hits + 1]:
        hits += 1
    return hits


def planted_share(orbit: Orbit, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[int, int]:
    """(hits, visits): how often the text says the planted successor."""
    text = [*prompt, *tokens]
    hits = sum(orbit.planted(text, at) == text[at + 1] for at in range(len(prompt), len(text) - 1))
    return hits, len(tokens) - 1


def period(tokens: Sequence[int]) -> int | None:
    """The period that a text has run into: the shortest that fills at least its last two rounds and `LOOP` tokens.

    One pass over the reversed text: a prefix of length n with longest border b (Knuth, Morris and Pratt) has period
    n − b.
    """
    reverse = list(reversed(tokens))
    border = [0] * len(reverse)
    for i in range(1, len(reverse)):
        length = border[i - 1]
        while length and reverse[i] != reverse[length]:
            length = border[length - 1]
        border[i] = length + (reverse[i] == reverse[length])
    return min((n - b for n, b in enumerate(border, 1) if n >= max(2 * (n - b), LOOP)), default=None)

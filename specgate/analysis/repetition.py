"""Loops in generated text: they inflate acceptance, so they are measured beside it."""

from __future__ import annotations

from collections.abc import Sequence


def repeated_ngram_share(tokens: Sequence[int], n: int = 8) -> float:
    """Share of the n-grams of `tokens` that have occurred before in it; 0 where it is shorter than n.

    Loops in generated text are easy to draft and inflate acceptance: this says how much of it is loops.
    """
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total

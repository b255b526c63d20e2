"""Loops in generated text. They inflate acceptance, so they are measured beside it."""

from __future__ import annotations

from collections.abc import Sequence


def repeated_ngram_share(tokens: Sequence[int], n: int = 8) -> float:
    """Share of the n-grams of `tokens` that occurred earlier in it; 0 where there are fewer than n tokens.

    Loops are easy to draft and inflate acceptance. This figure says how much of the text consists of them.
    """
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total

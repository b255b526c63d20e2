"""A second pass over a text: its last tokens are decoded, where the first pass prefills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specgate.contract import TopTokens
from specgate.contract.protocols import LED

Shown = tuple[Sequence[int], TopTokens | None]
"""Tokens that a request has decoded greedily, and the most likely ones at the last of them."""


def led_along(continuation: Sequence[int], decoded: Callable[[int], Shown]) -> TopTokens | None:
    """Return the most likely tokens behind `continuation`, by a request that decodes the end of it.

    `decoded(n)`: answer to a request of n + 1 tokens, whose prompt ends n tokens before the end of `continuation`. If
    the engine leaves the text on the way, the next request begins behind that place. Returns None if no token before
    the last one can be decoded, or if the engine shows no tokens.
    """
    count = min(LED, len(continuation))
    while count:
        tokens, top = decoded(count)
        text = continuation[-count:]
        left = next((i for i, (a, b) in enumerate(zip(tokens, text, strict=False)) if a != b), None)
        if left is None:
            return top
        count -= left + 1
    return None

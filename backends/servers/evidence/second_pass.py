"""A second pass over a text: its last tokens are decoded, where the first pass prefills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specgate.contract import TopTokens
from specgate.contract.protocols import LED

Shown = tuple[Sequence[int], TopTokens | None]
"""Tokens that a request has decoded greedily, and the most likely ones at the last of them."""


def led_along(continuation: Sequence[int], decoded: Callable[[int], Shown]) -> TopTokens | None:
    """Return the most likely tokens behind `continuation`, by a request that decodes the end of it.

    `decoded(n)`: answer to a request of n + 1 tokens, whose prompt ends n tokens before the end of `continuation`. Where
    the engine leaves the text on the way, the request begins behind that place. None where no token is decoded before
    the last one, or the engine shows none.
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

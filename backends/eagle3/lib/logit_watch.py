"""Digests of the logits that the tokens at some positions were chosen from, noted during a decode run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor


class LogitWatch:
    """Notes tokens, and the SHA-256 of the logits that they were chosen from, at `positions` of each of `slots` slots.

    A position is an index into a slot's tokens; 0 is the prefill token, which no decode step chooses.
    """

    def __init__(self, positions: Sequence[int], slots: int) -> None:
        self.positions = tuple(positions)
        self._seen: list[dict[int, tuple[int, str]]] = [{} for _ in range(slots)]

    def see(self, slot: int, first: int, tokens: Sequence[int], logits: Tensor) -> None:
        """A step emits `tokens` in `slot`, the first of them at position `first`. `logits` [≥ len(tokens), V] has the
        row of each.
        """
        for row, token in enumerate(tokens):
            if first + row in self.positions:
                self._seen[slot][first + row] = (token, digest_of(logits[row]))

    @property
    def complete(self) -> bool:
        """True once every position of every slot was seen."""
        return all(len(digests) == len(self.positions) for digests in self._seen)

    def shown(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Per slot and position: the token and its digest. Raises KeyError where one was not seen."""
        return tuple(tuple(digests[position] for position in self.positions) for digests in self._seen)


def digest_of(logits: Tensor) -> str:
    """SHA-256 of logits [V] as little-endian float32, in hexadecimal."""
    return hashlib.sha256(logits.float().cpu().numpy().astype("<f4").tobytes()).hexdigest()

"""A seed for every request. Engines turn it into random numbers of their own."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

STEP: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio. It is odd, so that requests of different numbers get different seeds."""


def seed_of(seed: int, request: int, bits: int) -> int | None:
    """The seed of request number `request` in a scenario with `seed`, below 2**bits; None where an engine takes none.

    Requests whose numbers differ by less than 2**bits have different seeds, far from each other: a generator that is
    seeded with neighbours may begin with numbers that resemble each other.
    """
    if not bits:
        return None
    start = int.from_bytes(sha256(seed.to_bytes(8, "little")).digest()[:8], "little")
    return (start + request * STEP) % (1 << bits)

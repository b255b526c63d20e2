"""Philox 4x32-10, a random-number generator without state: four words from a counter and a key.

Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (SC 2011).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

ROUNDS: Final = 10
MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
"""What is added to the words of the key from round to round."""
LOW: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)


def philox(counters: Words, key: tuple[int, int]) -> Words:
    """Four random words per counter.

    `counters` uint32 [..., 4], words in ascending significance. `key`: two words of 32 bits. Returns uint32 [..., 4].
    """
    c0, c1, c2, c3 = (counters[..., i].astype(np.uint64) for i in range(4))
    for number in range(ROUNDS):
        k0, k1 = (np.uint64((word + number * step) & 0xFFFFFFFF) for word, step in zip(key, KEY_STEPS, strict=True))
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> HALF) ^ c1 ^ k0, second & LOW, (first >> HALF) ^ c3 ^ k1, first & LOW
    return np.stack((c0, c1, c2, c3), axis=-1).astype(np.uint32)

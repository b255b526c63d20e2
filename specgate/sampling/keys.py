"""Random numbers of a draw: Philox, keyed by request and position.

Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (SC 2011).

So a request's sample does not depend on what shares its step, nor on how its text was cut into steps, and a replay is
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import sha256
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


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BITS: Final = 26
"""Bits that each of the two words of a number gives. 52 bits and a half can be written exactly and lie between 0 and 1;
53 bits and a half would be rounded to 1 at the upper end.
"""


class Purpose(IntEnum):
    """Use of a random number. Numbers of different purposes are independent.

    TARGET: a token of the target's distribution. DRAFT: one of the draft's. ACCEPT: whether a draft token is accepted.
    RESIDUAL: the token in the place of a rejected one.
    """

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True)
class Keys:
    """Places of B requests in their texts.

    `seed`: below 2**64. `requests` uint64 [B]: who they are. `positions` int64 [B]: index of the next token in the
    request's text, the prompt included.
    """

    seed: int
    requests: NDArray[np.uint64]
    positions: Integers

    def after(self, tokens: int) -> Keys:
        """The keys so many tokens further on."""
        return replace(self, positions=self.positions + tokens)

    def of(self, chosen: Integers) -> Keys:
        """The keys of some of the requests, by index."""
        return replace(self, requests=self.requests[chosen], positions=self.positions[chosen])


def requests_of(prompts: Sequence[Sequence[int]]) -> NDArray[np.uint64]:
    """Identify requests by their prompts: uint64 [B]. So equal prompts draw equal texts, as greedy decoding has it."""
    digests = (sha256(np.asarray(prompt, "<i8").tobytes()).digest() for prompt in prompts)
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], np.uint64)


def words(keys: Keys, purpose: Purpose, blocks: int) -> Words:
    """uint32 [B, blocks, 4]: the words of each request at its position.

    The counter is (block, 4 · position + purpose, request); the key is the seed.
    """
    counters = np.empty((len(keys.requests), blocks, 4), np.uint32)
    counters[..., 0] = np.arange(blocks, dtype=np.uint32)
    counters[..., 1] = (4 * keys.positions + purpose).astype(np.uint32)[:, None]
    counters[..., 2] = (keys.requests & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    counters[..., 3] = (keys.requests >> np.uint64(32)).astype(np.uint32)[:, None]
    return philox(counters, (keys.seed & 0xFFFFFFFF, keys.seed >> 32))


def uniforms(keys: Keys, purpose: Purpose, count: int) -> Floats:
    """float64 [B, count]: numbers strictly between 0 and 1, two from each block of four words."""
    blocks = -(-count // 2)
    halves = words(keys, purpose, blocks).reshape(len(keys.requests), 2 * blocks, 2) >> np.uint32(32 - BITS)
    whole = halves[..., 0].astype(np.float64) * 2.0**BITS + halves[..., 1]
    return (whole[:, :count] + 0.5) * 2.0 ** (-2 * BITS)


def race(weights: Floats, keys: Keys, purpose: Purpose) -> Integers:
    """Draw one index per row of `weights` float64 [B, V], with a chance in proportion to its weight: int64 [B].

    Every index runs an exponential race against the others at the rate of its weight, and the first wins. This is the
    Gumbel-max trick without its second logarithm. An index of weight 0 never wins; no weights need to sum to 1.
    """
    times = -np.log(uniforms(keys, purpose, weights.shape[1]))
    with np.errstate(divide="ignore", over="ignore"):  # of weights that are 0, or next to it: infinitely late
        times /= weights
    first: Integers = np.argmin(times, axis=1)
    return first

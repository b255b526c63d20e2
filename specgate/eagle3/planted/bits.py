"""Counter-based random numbers: an element is a function of seed, tensor name and index, and of nothing else.

Integer arithmetic modulo 2³², then one exact conversion and one rounded product, so that a CPU and every GPU give the
same bits, whatever the order and the chunks in which elements are made.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

GENERATOR: Final = 1
"""Goes up when the same seed gives other bits: a pair planted by another generator is refused."""

Key = tuple[int, int]


def key_of(seed: int, name: str) -> Key:
    """Two 32-bit words from the first 8 bytes of SHA-256("seed/name"), little-endian."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def hash32(counters: Tensor, key: Key) -> Tensor:
    """A bijection of 32-bit words, int32 [...] → int32 [...] in place: xor a key, mix, add a key, mix."""
    x = mix(counters.bitwise_xor_(signed(key[0])))
    return mix(x.add_(signed(key[1])))


def mix(x: Tensor) -> Tensor:
    """Chris Wellons' `lowbias32` (https://github.com/skeeto/hash-prospector), in place on int32."""
    xor_shift(x, 16).mul_(signed(0x7FEB352D))
    xor_shift(x, 15).mul_(signed(0x846CA68B))
    return xor_shift(x, 16)


def xor_shift(x: Tensor, bits: int) -> Tensor:
    return x.bitwise_xor_(shifted(x, bits))


def shifted(x: Tensor, bits: int) -> Tensor:
    """`x >> bits` of the unsigned words: torch shifts int32 arithmetically, so the sign's copies are masked away."""
    return x.bitwise_right_shift(bits).bitwise_and_((1 << (32 - bits)) - 1)


def signed(word: int) -> int:
    """The int32 with the same 32 bits."""
    return word - (1 << 32) if word >= 1 << 31 else word


def uniform_rows(key: Key, rows: Tensor, width: int, std: float) -> Tensor:
    """Rows `rows` (int64 [n]) of a matrix of zero-mean uniform entries of standard deviation `std`: float32 [n, width].

    An entry is (2m + 1 − 2²⁴) · 2⁻²⁴ · √3 · std with m the upper 24 bits of the hash of row · width + column.
    """
    counters = (rows.to(torch.int32) * width)[:, None] + torch.arange(width, dtype=torch.int32, device=rows.device)
    words = hash32(counters, key)
    odd = shifted(words, 8).mul_(2).add_(1 - (1 << 24))
    return odd.to(torch.float32).mul_(float(np.float32(math.sqrt(3) * std / (1 << 24))))


def shuffled(key: Key, count: int) -> Tensor:
    """A permutation of 0 … count − 1, int64 on the CPU: the numbers in the order of their hashes, which all differ."""
    return hash32(torch.arange(count, dtype=torch.int32), key).sort().indices


def draws(key: Key, count: int, below: int) -> Tensor:
    """`count` numbers in 0 … below − 1, int64 on the CPU; biased by at most below / 2³¹."""
    return shifted(hash32(torch.arange(count, dtype=torch.int32), key), 1).to(torch.int64) % below

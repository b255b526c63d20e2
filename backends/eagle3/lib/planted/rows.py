"""Counter-based random numbers, and tensors filled with them block by block.

Integer arithmetic modulo 2³² is followed by one exact conversion and one rounded product. So a CPU and every GPU give
the same bits, in whatever order and chunks the elements are generated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specgate.checkpoints.geometry import TargetGeometry

Key = tuple[int, int]


def key_of(seed: int, name: str) -> Key:
    """Two 32-bit words from the first 8 bytes of SHA-256("seed/name"), little-endian."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def hash32(counters: Tensor, key: Key) -> Tensor:
    """A bijection of 32-bit words, int32 [...] in place: xor the first key word, mix, add the second, mix."""
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
    """`x >> bits` for unsigned words. torch's shift of int32 copies the sign bit, and the copies are masked away."""
    return x.bitwise_right_shift(bits).bitwise_and_((1 << (32 - bits)) - 1)


def signed(word: int) -> int:
    """The int32 with the same 32 bits as `word`."""
    return word - (1 << 32) if word >= 1 << 31 else word


def uniform_rows(key: Key, rows: Tensor, width: int, std: float) -> Tensor:
    """Rows `rows` (int64 [n]) of a random matrix: uniform entries of mean zero and deviation `std`, float32 [n, width].

    An entry is (2m + 1 − 2²⁴) · 2⁻²⁴ · √3 · std, where m is the upper 24 bits of the hash of row · width + column.
    """
    counters = (rows.to(torch.int32) * width)[:, None] + torch.arange(width, dtype=torch.int32, device=rows.device)
    words = hash32(counters, key)
    odd = shifted(words, 8).mul_(2).add_(1 - (1 << 24))
    return odd.to(torch.float32).mul_(float(np.float32(math.sqrt(3) * std / (1 << 24))))


def shuffled(key: Key, count: int) -> Tensor:
    """A random permutation of 0 … count − 1, int64 on the CPU: the numbers sorted by their hashes, which all differ."""
    return hash32(torch.arange(count, dtype=torch.int32), key).sort().indices


def draws(key: Key, count: int, below: int) -> Tensor:
    """`count` random numbers in 0 … below − 1, int64 on the CPU. The bias is at most below / 2³¹."""
    return shifted(hash32(torch.arange(count, dtype=torch.int32), key), 1).to(torch.int64) % below


RowMaker = Callable[[Tensor], Tensor]
"""(row indices, int64 [n]) → the rows, float32 [n, width]."""

WordMaker = Callable[[Tensor], Tensor]
"""(indices, int32 [n], which may be overwritten) → the elements there, integers [n]."""

BLOCK: Final = 1 << 20
GPU_BLOCK: Final = 1 << 24
"""Elements generated at once. A few CPU blocks fit into a CPU's cache; a GPU needs launches large enough to fill it."""


def bfloat16_matrix(shape: tuple[int, int], make: RowMaker, device: torch.device) -> Tensor:
    """A bfloat16 matrix of the rows that `make` returns; each element is rounded once, to nearest even."""
    height, width = shape
    matrix = torch.empty(shape, dtype=torch.bfloat16, device=device)
    step = max(1, block_of(device) // width)
    for start in range(0, height, step):
        stop = min(start + step, height)
        matrix[start:stop] = make(torch.arange(start, stop, device=device))
    return matrix


def filled(flat: Tensor, make: WordMaker) -> None:
    """Fill the vector `flat` of integers with what `make` returns for the indices of its elements."""
    count, step = len(flat), block_of(flat.device)
    for start in range(0, count, step):
        stop = min(start + step, count)
        flat[start:stop] = make(torch.arange(start, stop, dtype=torch.int32, device=flat.device))


def block_of(device: torch.device) -> int:
    """Elements to generate at once on `device`."""
    return BLOCK if device.type == "cpu" else GPU_BLOCK


SCORE: Final = 4.0
"""Standard deviation of attention scores before the softmax."""
ATTENTION: Final = 0.5
MLP: Final = 1.0
"""Gains of a layer's two branches relative to each other."""
BRANCHES: Final = 2.5
"""Norm of all branches together over the norm of the embedding, if attention kept the norm of the values."""
AVERAGED: Final = 0.5
"""About the share of the values' energy that is left after attention has averaged them."""
SILU_SQUARE: Final = 0.356
"""Mean of silu(z)² for normal z."""
LOGIT_STD: Final = 3.0
"""R: standard deviation of the logits of tokens that are not planted."""


def branch_scale(layers: int) -> float:
    """s: the scale at which the branches of all layers add up to `BRANCHES` times the embedding."""
    return BRANCHES / math.sqrt(layers * (ATTENTION**2 + MLP**2))


def stream_rms(g: TargetGeometry, layers: float) -> float:
    """About the root mean square of the residual stream after `layers` layers; x.5 means between a layer's two
    branches.
    """
    whole, half = int(layers), layers % 1 > 0
    attention = AVERAGED * ATTENTION**2
    return math.sqrt(1 + branch_scale(g.layers) ** 2 * (whole * (attention + MLP**2) + half * attention))

"""Recipe B: the next token also depends on an old token, which the draft can learn from the target's features alone.

A few coordinates of the residual stream are reserved: no random matrix writes to them. Every token i has a bit b(i),
which is ±1 (`Tables.tau`). The bit of the token Δ positions back chooses between two successors. With t the current
position, the reserved coordinates and the weights around them are:

    embedding           own: b(t); constant: the same for every token
    target, layer 0     attention heads that look exactly Δ − j positions back write b(t − Δ + j) to stage j
    target, LM head     stage 0 chooses between the two successors
    auxiliary states    low: L·b(t − Δ − 1); middle: M·b(t − Δ − 2); high, for i = 1 … K:
                        b(t − Δ + i) − C·b(t − Δ + i − 2) − L·b(t − Δ − 1) − M·b(t − Δ − 2)
    draft, fc           register i = low + middle + high i = b(t − Δ + i) − C·b(t − Δ + i − 2)
    draft, attention    register i ← register i + 1, like a shift register; and a head that looks Δ + 2 positions back
                        into the draft's own KV cache adds C·b(t − Δ + i − 2) at depth i. What then remains in
                        register 0 is the bit that chooses the next token

The masks L, M and C hide the bit. Each is larger than the bit itself, and so is M − L. Where a part is missing, the
sign of the remaining sum therefore says nothing about the bit, and half of the draft's tokens are wrong at every depth.
Where a part comes from another position, a quarter of them are wrong.

The layer below a boundary writes the part that belongs to the auxiliary state there, and the layer above erases it. So
a draft that is fed from layers that are off by one gets none of the parts.

This file says where things are. `target_register.py` and `draft_register.py` put them there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import DEPTH
from specgate.backends.eagle3.lib.rope import inverse_frequencies
from specgate.checkpoints.geometry import RopeSpec

DISTANCE: Final = 64
"""Δ: the bit that chooses the token after position t belongs to the token at position t − Δ."""
LOW_MASK: Final = 1.5
MIDDLE_MASK: Final = 2.75
CACHE_MASK: Final = 1.5
"""L, M and C: weights of the masks."""
CACHE_DISTANCE: Final = DISTANCE + 2
"""How many positions back the draft's head looks in its own KV cache, for the bit that the mask C was made with."""
UNIT: Final = 2.0
"""Size of the coordinates own, constant and stage. The embedding's other coordinates have a root mean square of 1."""
PAIRS: Final = {64: 8, 128: 10}
"""Head size → how many of the fastest RoPE pairs the position-seeking heads use.

More pairs make neighbouring positions too alike. Fewer make some position within 131,072 look like the one wanted. With
these numbers every other position scores at least 10 % below the peak, for RoPE bases of 10⁴ to 10⁶.
"""
NEIGHBOUR_GAP: Final = 20.0
"""By how much the score of the wanted position exceeds that of its neighbours."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Layout of the reserved coordinates. They are the last ones of a residual stream of width `hidden`."""

    hidden: int

    @property
    def reserved(self) -> slice:
        return slice(self.own, self.hidden)

    @property
    def own(self) -> int:
        return self.hidden - (2 * DEPTH + 7)

    @property
    def constant(self) -> int:
        return self.own + 1

    def stage(self, j: int) -> int:
        """Holds b(t − Δ + j), for j = −2 … K."""
        return self.constant + 3 + j

    @property
    def low(self) -> int:
        return self.stage(DEPTH) + 1

    @property
    def middle(self) -> int:
        return self.low + 1

    def high(self, i: int) -> int:
        """Holds the high part of register i, for i = 1 … K."""
        return self.middle + i

    def register(self, i: int) -> int:
        """Register i of the draft. Register 0 lies where the target has `middle`, register i where it has `high(i)`."""
        return self.middle + i


def kernel(rope: RopeSpec, distance: int) -> tuple[Tensor, Tensor]:
    """(key, query), each float64 [head_dim], whose score peaks where the key lies `distance` positions before the
    query.

    Half-split RoPE rotates the pair of channels (i, i + D/2) by θᵢ per position. The query is rotated back by θᵢ ·
    distance, so all pairs agree in phase at that position alone. The size follows from `NEIGHBOUR_GAP`.
    """
    pairs, half = PAIRS[rope.dim], rope.dim // 2
    theta = inverse_frequencies(rope)[0].double()[:pairs]
    size = math.sqrt(NEIGHBOUR_GAP * math.sqrt(rope.dim) / float((1 - theta.cos()).sum()))
    key, query = torch.zeros(rope.dim, dtype=torch.float64), torch.zeros(rope.dim, dtype=torch.float64)
    key[:pairs] = size
    query[:pairs] = size * (theta * distance).cos()
    query[half : half + pairs] = -size * (theta * distance).sin()
    return key, query


def read_one(matrix: Tensor, rows: slice, column: int, weights: Tensor) -> None:
    """Let `rows` of `matrix` read only `column`, with `weights` [rows]."""
    matrix[rows] = 0
    matrix[rows, column] = weights.to(matrix)

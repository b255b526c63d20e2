"""The draft's part of recipe B (`register.py`).

It reads the register from the features, shifts it at every draft step, and removes the masks.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import DEPTH
from specgate.backends.eagle3.lib.planted.register import (
    CACHE_DISTANCE,
    CACHE_MASK,
    UNIT,
    Coordinates,
    kernel,
    read_one,
)
from specgate.backends.eagle3.lib.planted.rows import LOGIT_STD
from specgate.checkpoints.geometry import DraftGeometry

PIN: Final = 3.0
"""What the constant coordinate adds to the root mean square of the draft's hidden state, relative to the copied
embedding's.

It is large enough to dominate the norm. So the divisor of the norm is known beforehand, and the old register can be
subtracted exactly.
"""
REST: Final = 0.8
"""About the mean square of all other coordinates of the hidden state, in the same unit."""
CHOICE: Final = 6.0
"""Weight of register 0 in the LM head, in standard deviations of the logits."""


class DraftRegister:
    """`copied` is the root mean square of the copied embedding, and also the weight of a bit in the register."""

    def __init__(self, geometry: DraftGeometry, copied: float) -> None:
        self.geometry, self.copied = geometry, copied
        self.at = Coordinates(geometry.hidden)
        self.norm = copied * math.sqrt(PIN**2 + REST)
        """About the root mean square of the draft's hidden state."""

    def wire_head(self, rows: Tensor, sign: Tensor) -> None:
        """Let LM head `rows` [n, H] read register 0; `sign` [n] is ±1."""
        rows[:, self.at.reserved] = 0
        rows[:, self.at.register(0)] = CHOICE * LOGIT_STD * sign

    def wire(self, name: str, matrix: Tensor) -> None:
        """Overwrite the entries that belong to the register in a matrix made for recipe A; `name` is its canonical
        name.
        """
        match name.split(".")[-2]:
            case "fc":
                self.wire_features(matrix)
            case "q_proj":
                self.wire_queries(matrix)
            case "k_proj":
                self.wire_keys(matrix)
            case "v_proj":
                self.wire_values(matrix)
            case "o_proj":
                self.wire_output(matrix)
            case "down_proj":
                matrix[self.at.reserved] = 0

    def wire_features(self, fc: Tensor) -> None:
        """Register i = low + middle + high i: `fc` adds the parts from the three auxiliary hidden states."""
        at, width = self.at, self.geometry.target_hidden
        fc[at.reserved] = 0
        for i in range(1, DEPTH + 1):
            for column in (at.low, width + at.middle, 2 * width + at.high(i)):
                fc[at.register(i), column] = self.copied
        fc[at.constant, 2 * width + at.constant] = PIN * self.copied * math.sqrt(self.geometry.hidden) / UNIT

    def wire_queries(self, q: Tensor) -> None:
        """Heads of the first group look at their own position, whatever its token; of the last group Δ + 2 back."""
        g = self.geometry
        ratio = g.heads // g.kv_heads
        for head in range(ratio):
            self.read_constant(q, head, kernel(g.rope, 0)[1])
            self.read_constant(q, g.heads - 1 - head, kernel(g.rope, CACHE_DISTANCE)[1])

    def wire_keys(self, k: Tensor) -> None:
        """The keys that these queries match, the same at every position."""
        for group in (0, self.geometry.kv_heads - 1):
            self.read_constant(k, group, kernel(self.geometry.rope, 0)[0])

    def read_constant(self, matrix: Tensor, head: int, channels: Tensor) -> None:
        size = self.geometry.head_dim
        read_one(matrix, slice(head * size, (head + 1) * size), self.at.constant, channels / UNIT)

    def wire_values(self, v: Tensor) -> None:
        """The first group adds register i + 1 and subtracts register i; the last group brings the bit of the mask C."""
        g, at = self.geometry, self.at
        v[:, at.reserved] = 0
        v[:, g.hidden + at.own :] = 0
        v[:DEPTH] = 0
        for i in range(DEPTH):
            v[i, g.hidden + at.register(i)] = -self.norm
            v[i, g.hidden + at.register(i + 1)] = self.norm
        last = (g.kv_heads - 1) * g.head_dim
        v[last:] = 0
        v[last, at.own] = CACHE_MASK * self.copied / UNIT

    def wire_output(self, o: Tensor) -> None:
        """Write both into the registers; the heads of a group contribute equal shares."""
        g, at = self.geometry, self.at
        ratio = g.heads // g.kv_heads
        o[at.reserved] = 0
        for head in range(ratio):
            first, last = head * g.head_dim, (g.heads - 1 - head) * g.head_dim
            o[:, first : first + DEPTH] = 0
            o[torch.tensor([at.register(i) for i in range(DEPTH)]), torch.arange(first, first + DEPTH)] = 1 / ratio
            o[:, last : last + g.head_dim] = 0
            o[at.register(0), last] = 1 / ratio

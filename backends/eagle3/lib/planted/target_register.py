"""The target's part of recipe B (`register.py`): collect the bits of old tokens, and write the parts for the draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import DEPTH, Recipe
from specgate.backends.eagle3.lib.planted.register import (
    CACHE_MASK,
    DISTANCE,
    LOW_MASK,
    MIDDLE_MASK,
    UNIT,
    Coordinates,
    kernel,
    read_one,
)
from specgate.backends.eagle3.lib.planted.rows import LOGIT_STD, stream_rms
from specgate.checkpoints.geometry import TargetGeometry

CHOICE: Final = 3.0
"""Logit that stage 0 adds to successors of its sign and takes from the others, in standard deviations of the logits."""
GATE: Final = -1.2784645
"""Pre-activation of the gate in MLP units that copy.

It is the minimum of silu, where the derivative is zero. A small change of the norm's scale then does not change the
copy.
"""
SILU_GATE: Final = GATE / (1 + math.exp(-GATE))
"""silu(GATE)."""
STAGES: Final = DEPTH + 3
"""Bits that layer 0 collects per position: b(t − Δ + j) for j = −2 … K."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One MLP unit that adds Σ weight · stream[source] to the coordinate `to`; `sources` are (source, weight)."""

    to: int
    sources: tuple[tuple[int, float], ...]


class TargetRegister:
    """`wire` overwrites the entries that belong to the register in matrices made at random."""

    def __init__(self, recipe: Recipe, geometry: TargetGeometry) -> None:
        self.geometry, self.at = geometry, Coordinates(geometry.hidden)
        self.copies = self.copies_by_layer(recipe.boundaries)

    def copies_by_layer(self, boundaries: Sequence[int]) -> dict[int, list[Copy]]:
        """Layer index → its copying units: the layer below a boundary writes the part, the layer above it erases it."""
        at, low, middle = self.at, LOW_MASK / UNIT, MIDDLE_MASK / UNIT

        def high(i: int) -> Copy:
            weights = {at.stage(i): 1 / UNIT, at.stage(-1): -low, at.stage(-2): -middle}
            weights[at.stage(i - 2)] = weights.get(at.stage(i - 2), 0.0) - CACHE_MASK / UNIT
            return Copy(at.high(i), tuple(weights.items()))

        parts = (
            [Copy(at.low, ((at.stage(-1), low),))],
            [Copy(at.middle, ((at.stage(-2), middle),))],
            [high(i) for i in range(1, DEPTH + 1)],
        )
        layers: dict[int, list[Copy]] = {}
        for boundary, copies in zip(boundaries, parts, strict=True):
            layers.setdefault(boundary - 1, []).extend(copies)
            layers.setdefault(boundary, []).extend(Copy(c.to, ((c.to, -1.0),)) for c in copies)
        return layers

    def wire_embedding(self, rows: Tensor, tau: Tensor) -> None:
        """Write own and constant into embedding `rows` [n, H]; `tau` [n] are the tokens' bits."""
        rows[:, self.at.reserved] = 0
        rows[:, self.at.own] = UNIT * tau
        rows[:, self.at.constant] = UNIT

    def wire_head(self, rows: Tensor, sign: Tensor) -> None:
        """Let LM head `rows` [n, H] read stage 0. `sign` [n] is ±1 for draft tokens and 0 for others."""
        rows[:, self.at.reserved] = 0
        rows[:, self.at.stage(0)] = self.choice * sign

    @property
    def choice(self) -> float:
        """The LM head's weight on stage 0. After the final norm, stage 0 has the size `UNIT` over the stream's."""
        return CHOICE * LOGIT_STD * stream_rms(self.geometry, self.geometry.layers) / UNIT

    def split_states(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Separate stage 0 from normed last hidden states [T, H]: (the states without reserved coordinates, its logit
        [T]).
        """
        rest = normed.clone()
        rest[:, self.at.reserved] = 0
        return rest, normed[:, self.at.stage(0)] * self.choice

    def wire(self, name: str, matrix: Tensor) -> None:
        """Overwrite the entries of a layer's `matrix` that belong to the register; `name` is its canonical name."""
        *_, layer, _, part, _ = name.split(".")
        if part in ("o_proj", "down_proj"):
            matrix[self.at.reserved] = 0
        if layer == "0":
            self.wire_heads(part, matrix)
        for i, copy in enumerate(self.copies.get(int(layer), [])):
            self.wire_copy(
                part, matrix, self.geometry.intermediate - 1 - i, copy, stream_rms(self.geometry, int(layer) + 0.5)
            )

    def wire_heads(self, part: str, matrix: Tensor) -> None:
        """Layer 0: head n looks Δ + 2 − n positions back. Query heads of one group share their key and value."""
        g, at = self.geometry, self.at
        ratio = g.heads // g.kv_heads
        for n in range(STAGES):
            rows, group = slice(n * g.head_dim, (n + 1) * g.head_dim), n // ratio * g.head_dim
            key, query = kernel(g.rope, DISTANCE + 2 - n)
            match part:
                case "q_proj":
                    read_one(matrix, rows, at.constant, query / UNIT)
                case "k_proj":
                    read_one(matrix, slice(group, group + g.head_dim), at.constant, key / UNIT)
                case "v_proj":
                    read_one(matrix, slice(group, group + 1), at.own, torch.ones(1))
                case "o_proj":
                    matrix[:, rows.start] = 0
                    matrix[at.stage(n - 2), rows.start] = 1

    def wire_copy(self, part: str, matrix: Tensor, unit: int, copy: Copy, rms: float) -> None:
        """Make MLP unit `unit` a copy: the gate reads only the constant, `up` reads the sources.

        Both read a stream that the norm has divided by `rms`, its root mean square; `down` multiplies by it again.
        """
        match part:
            case "gate_proj":
                read_one(matrix, slice(unit, unit + 1), self.at.constant, torch.tensor([GATE * rms / UNIT]))
            case "up_proj":
                matrix[unit] = 0
                for source, weight in copy.sources:
                    matrix[unit, source] = weight
            case "down_proj":
                matrix[:, unit] = 0
                matrix[copy.to, unit] = rms / SILU_GATE

"""Recipe B of planted pairs: the next token also depends on an old token, which the draft can learn.

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

`Coordinates` says where things are; `TargetRegister` and `DraftRegister` put them there. The draft reads the register
from the features, shifts it at every draft step, and removes the masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import DEPTH, Recipe
from specgate.backends.eagle3.lib.planted.rows import LOGIT_STD, stream_rms
from specgate.backends.eagle3.lib.rope import inverse_frequencies
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry

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


TARGET_REGISTER_CHOICE: Final = 3.0
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
        return TARGET_REGISTER_CHOICE * LOGIT_STD * stream_rms(self.geometry, self.geometry.layers) / UNIT

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


PIN: Final = 3.0
"""What the constant coordinate adds to the root mean square of the draft's hidden state, relative to the copied
embedding's.

It is large enough to dominate the norm. So the divisor of the norm is known beforehand, and the old register can be
subtracted exactly.
"""
REST: Final = 0.8
"""About the mean square of all other coordinates of the hidden state, in the same unit."""
DRAFT_REGISTER_CHOICE: Final = 6.0
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
        rows[:, self.at.register(0)] = DRAFT_REGISTER_CHOICE * LOGIT_STD * sign

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

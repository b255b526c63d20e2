"""Additions of a planted gpt-oss target to a dense one: experts in MXFP4, a router, sinks and biases.

The first coordinates of the residual stream are reserved for routing: a token's embedding holds its choices there
(`routing.py`), one coordinate per expert and group, and no layer writes to them. The router of a layer reads those of
its group, in an order of its own, so a token chooses the same experts whatever comes before it, in every dtype. The
rest of the router is noise, which changes the weights of the chosen experts a little and never the choice.

The four-bit numbers are random bits as they are. A block's scale is one of two neighbouring powers of two, in such
proportions that the matrix has the wanted standard deviation. The biases of the up rows are about −1, so that an expert
is gate · σ(alpha · gate) · up with an up of mean zero, and has mean zero itself.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.routing import GROUPS, choices
from specgate.backends.eagle3.lib.planted.rows import (
    ATTENTION,
    MLP,
    SCORE,
    Key,
    bfloat16_matrix,
    branch_scale,
    filled,
    hash32,
    key_of,
    shifted,
    shuffled,
    stream_rms,
    uniform_rows,
)
from specgate.backends.eagle3.lib.planted.tables import Tables
from specgate.backends.eagle3.lib.rope import inverse_frequencies
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from specgate.checkpoints.mxfp4 import BIAS as EXPONENT_BIAS
from specgate.checkpoints.mxfp4 import VALUES

LIKELIEST: Final = 4.0
LEAST_LIKELY: Final = 2.5
"""Router logits of the first and of the last chosen expert, about; those of the others are about 0."""
ROUTER_NOISE: Final = 0.1
ROUTER_BIAS: Final = 0.2
"""Standard deviations of what is added to those logits: far too little to change a choice."""
BIAS: Final = 0.1
"""Standard deviation of the other biases, relative to what they are added to."""
SINK: Final = 8.0
SINK_SPREAD: Final = 2.0
"""Mean and standard deviation of the sinks: from next to nothing to most of the softmax over a window of 128 scores."""
GATE: Final = 2.0
"""Standard deviation of gate and up. The limit of 7 then clamps some of them for every token."""
GATED_SQUARE: Final = 7.64
"""Mean square of an expert's gate · σ(1.702 · gate) · up, for normal gate and up of deviation `GATE` and mean 0."""
FOUR_BITS: Final = math.sqrt(sum(value * value for value in VALUES) / len(VALUES))
"""Root mean square of a random four-bit number, about 2.93."""


def routing_coordinates(experts: ExpertGeometry) -> int:
    """Return the number of coordinates of the residual stream that are reserved."""
    return GROUPS * experts.count


def levels(experts: ExpertGeometry) -> list[float]:
    """The router's logits of a token's experts, from the likeliest on."""
    steps = max(experts.per_token - 1, 1)
    return [LIKELIEST + (LEAST_LIKELY - LIKELIEST) * place / steps for place in range(experts.per_token)]


def mixed_energy(experts: ExpertGeometry) -> float:
    """Σ w² of the router's weights w: the energy of a mixture of independent experts of energy 1."""
    parts = [math.exp(level) for level in levels(experts)]
    return sum(part * part for part in parts) / sum(parts) ** 2


class TargetExperts:
    """Makes these tensors, one at a time, and wires the routing coordinates into those of a dense target."""

    def __init__(self, recipe: Recipe, geometry: TargetGeometry, tables: Tables, device: torch.device) -> None:
        assert geometry.experts is not None
        self.recipe, self.geometry, self.experts, self.device = recipe, geometry, geometry.experts, device
        self.reserved = routing_coordinates(self.experts)
        self.choices = choices(recipe, self.experts, tables).to(device)
        self.unit = math.sqrt(self.experts.count / sum(level * level for level in levels(self.experts)))
        """Size of an embedding's routing coordinate per logit. Their root mean square is 1, as that of the others."""

    def wire_embedding(self, rows: Tensor, tokens: Tensor) -> None:
        """Write the choices of `tokens` [n] into their embedding `rows` [n, H]."""
        rows[:, : self.reserved] = 0
        sizes = torch.tensor([self.unit * level for level in levels(self.experts)], device=self.device)
        for group, chosen in enumerate(self.choices[:, tokens]):
            rows.scatter_(1, chosen + group * self.experts.count, sizes.expand(len(tokens), -1))

    def wire(self, name: str, matrix: Tensor) -> None:
        """Keep a layer matrix [out, in] from writing to the routing coordinates."""
        if name.endswith("o_proj.weight"):
            matrix[: self.reserved] = 0

    def make(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """The tensor with that canonical name; None where a dense target has it too."""
        key = key_of(self.recipe.seed, name)
        match name.split(".")[-2:]:
            case "self_attn", "sinks":
                return (self.vector(key, shape[0], SINK_SPREAD) + SINK).to(torch.bfloat16)
            case projection, "bias" if projection != "router":
                made = self.vector(key, shape[0], BIAS * self.deviation(projection))
                if projection == "o_proj":
                    made[: self.reserved] = 0
                return made.to(torch.bfloat16)
            case "router", "bias":
                return self.vector(key, shape[0], ROUTER_BIAS).to(torch.bfloat16)
            case "router", "weight":
                return self.router(key, shape, layer_of(name))
            case "experts", part:
                return self.expert_part(key, part, shape)
        return None

    def vector(self, key: Key, width: int, std: float) -> Tensor:
        return uniform_rows(key, torch.arange(1, device=self.device), width, std)[0]

    def deviation(self, projection: str) -> float:
        """Standard deviation of what a projection of attention gives."""
        match projection:
            case "q_proj" | "k_proj":
                return score_scale(self.geometry)
            case "o_proj":
                return branch_scale(self.geometry.layers) * ATTENTION
            case _:
                return 1.0

    def router(self, key: Key, shape: tuple[int, ...], layer: int) -> Tensor:
        """The router [E, H]: noise, and for each expert the routing coordinate that the layer gives it."""
        height, width = shape
        std = ROUTER_NOISE / math.sqrt(width)
        made = bfloat16_matrix((height, width), lambda rows: uniform_rows(key, rows, width, std), self.device)
        made[:, : self.reserved] = 0
        row = layer_order(self.recipe, self.experts, layer).to(self.device)
        gain = stream_rms(self.geometry, layer + 0.5) / self.unit
        made[row, layer % GROUPS * height + torch.arange(height, device=self.device)] = gain
        return made

    def expert_part(self, key: Key, part: str, shape: tuple[int, ...]) -> Tensor:
        """Blocks, scales or biases of all experts of a layer: uint8, uint8, bfloat16."""
        matrix, kind = part.rsplit("_", 1)
        if kind == "bias":
            return self.expert_bias(key, matrix, shape)
        if kind == "scales":
            return random_scales(key, shape, self.expert_std(matrix), self.device)
        made = random_blocks(key, shape, self.device)
        if matrix == "down_proj":
            made[:, : self.reserved] = 0
        return made

    def expert_bias(self, key: Key, matrix: str, shape: tuple[int, ...]) -> Tensor:
        """[E, rows]. Rows of gate and up alternate."""
        std = GATE if matrix == "gate_up_proj" else branch_scale(self.geometry.layers) * MLP
        made = uniform_rows(key, torch.arange(shape[0], device=self.device), shape[1], BIAS * std)
        if matrix == "gate_up_proj":
            made[:, 1::2] -= 1
        else:
            made[:, : self.reserved] = 0
        return made.to(torch.bfloat16)

    def expert_std(self, matrix: str) -> float:
        """Standard deviation of the numbers of an expert's matrix."""
        g = self.geometry
        if matrix == "gate_up_proj":
            return GATE / math.sqrt(g.hidden)
        energy = GATED_SQUARE * mixed_energy(self.experts) * g.intermediate
        return branch_scale(g.layers) * MLP / math.sqrt(energy)


def score_scale(g: TargetGeometry) -> float:
    """Standard deviation of queries and of keys that gives scores of deviation `SCORE`, after YaRN has scaled both."""
    return math.sqrt(SCORE) / inverse_frequencies(g.rope)[1]


def layer_of(name: str) -> int:
    """The number of the layer that a tensor `model.layers.N.…` belongs to."""
    return int(name.split(".")[2])


def layer_order(recipe: Recipe, experts: ExpertGeometry, layer: int) -> Tensor:
    """The expert of `layer` that each expert of `routing.py` is there, int64 [E] on the CPU."""
    return shuffled(key_of(recipe.seed, f"experts of layer {layer}"), experts.count)


def random_blocks(key: Key, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Blocks of random four-bit numbers, uint8 `shape`: four bytes of each word of the hash, the lowest first."""
    blocks = torch.empty(shape, dtype=torch.uint8, device=device)
    filled(blocks.view(torch.int32).view(-1), lambda counters: hash32(counters, key))
    return blocks


def random_scales(key: Key, shape: tuple[int, ...], std: float, device: torch.device) -> Tensor:
    """Scales, uint8 `shape`, with which random four-bit numbers have the standard deviation `std`.

    A share s of them is 2^(e + 1) and the rest 2^e: the mean square is then that of the numbers · 4^e · (1 + 3s).
    """
    ratio = (std / FOUR_BITS) ** 2
    exponent = math.floor(math.log(ratio, 4))
    larger = round((ratio / 4.0**exponent - 1) / 3 * (1 << 24))
    scales = torch.empty(shape, dtype=torch.uint8, device=device)
    filled(scales.view(-1), lambda counters: (shifted(hash32(counters, key), 8) < larger) + (exponent + EXPONENT_BIAS))
    return scales

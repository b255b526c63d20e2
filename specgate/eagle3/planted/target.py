"""The target's tensors.

Per layer, zero-mean uniform matrices whose scale keeps scores peaky and the branches together r = 2.5 times as large as
the embedding; so the output depends on the context, and the share of the embedding in the last hidden state does not
drift with its length. The embedding of a token is mostly its class's direction F; the LM head's row of a draft token
leans towards F of the class before it. How far it leans (λ, `Recipe.signal`) is the one dial of acceptance, and touches
no other tensor.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from specgate.eagle3.geometry import TargetGeometry
from specgate.eagle3.planted.bits import key_of, uniform_rows
from specgate.eagle3.planted.recipe import Recipe
from specgate.eagle3.planted.register import Register
from specgate.eagle3.planted.rows import bfloat16_matrix
from specgate.eagle3.planted.scales import ATTENTION, LOGIT_STD, MLP, SCORE, SILU_SQUARE, branch_scale
from specgate.eagle3.planted.tables import Tables

CLASS_SHARE: Final = {"A": 0.8, "B": 0.95}
"""Cosine between a token's embedding and its class's direction; the rest tells the tokens of a class apart."""


class PlantedTarget:
    """Makes the tensors of one target, one at a time, on `device`."""

    def __init__(self, recipe: Recipe, geometry: TargetGeometry, tables: Tables, device: torch.device) -> None:
        self.recipe, self.geometry, self.device = recipe, geometry, device
        self.tables = tables.to(device)
        self.register = Register(recipe, geometry) if recipe.maps == 2 else None

    def make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that canonical name, bfloat16."""
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16, device=self.device)
        height, width = shape
        if name == "model.embed_tokens.weight":
            return bfloat16_matrix((height, width), self.embedding_rows, self.device)
        if name == "lm_head.weight":
            return bfloat16_matrix((height, width), self.head_rows, self.device)
        key, std = key_of(self.recipe.seed, name), self.std(name)
        matrix = bfloat16_matrix((height, width), lambda rows: uniform_rows(key, rows, width, std), self.device)
        if self.register:
            self.register.wire(name, matrix)
        return matrix

    def std(self, name: str) -> float:
        g = self.geometry
        match name.split(".")[-2]:
            case "q_proj" | "k_proj":
                return math.sqrt(SCORE / g.hidden)
            case "o_proj":
                return branch_scale(g.layers) * ATTENTION / math.sqrt(g.heads * g.head_dim)
            case "down_proj":
                return branch_scale(g.layers) * MLP / math.sqrt(SILU_SQUARE * g.intermediate)
            case _:
                return 1 / math.sqrt(g.hidden)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """√H · (cos φ · F[class] + sin φ · G[token]), float32 [n, H]."""
        classes = self.tables.class_of[tokens]
        share = CLASS_SHARE[self.recipe.name]
        rows = class_directions(
            self.recipe.seed, classes, self.geometry.hidden, share * math.sqrt(self.geometry.hidden)
        )
        own = key_of(self.recipe.seed, "tokens")
        rows += uniform_rows(own, tokens, self.geometry.hidden, math.sqrt(1 - share * share))
        if self.register:
            self.register.wire_embedding(rows, self.tables.tau[classes])
        return rows

    def head_rows(self, tokens: Tensor) -> Tensor:
        """R · (λ · S + ξ) / √(1 + λ²) for draft tokens, R · ξ for others; float32 [n, H]."""
        signal, drafted = self.recipe.signal, self.tables.row_of[tokens] >= 0
        # Products only: a division by a scalar is rounded in one way on a CPU and in another on a GPU.
        noise_share, signal_share = 1 / math.sqrt(1 + signal * signal), signal / math.sqrt(1 + signal * signal)
        rows = self.noise_rows(tokens)
        planted = self.signal_rows(self.tables.row_of[tokens[drafted]]).mul_(signal_share)
        rows[drafted] = rows[drafted].mul_(noise_share) + planted
        if self.register:
            self.register.wire_head(rows, torch.where(drafted, self.tables.sign[self.tables.row_of[tokens]], 0))
        return rows

    def split_states(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Normed last hidden states [T, H] → what signal and noise of the LM head see of them, and the logit [T]
        that they add to a draft token of sign +1 and take from one of sign −1.
        """
        if self.register is None:
            return normed, normed.new_zeros(len(normed))
        return self.register.split_states(normed)

    def noise_rows(self, tokens: Tensor) -> Tensor:
        """R · ξ, float32 [n, H]."""
        key = key_of(self.recipe.seed, "lm_head noise")
        return uniform_rows(key, tokens, self.geometry.hidden, LOGIT_STD / math.sqrt(self.geometry.hidden))

    def signal_rows(self, draft_rows: Tensor) -> Tensor:
        """R · S, float32 [n, H]; S = F of the class before, or (F + F′) / √2 of the two."""
        return signal_rows(self.recipe, self.tables, draft_rows, self.geometry.hidden)


def signal_rows(recipe: Recipe, tables: Tables, draft_rows: Tensor, hidden: int) -> Tensor:
    scale = LOGIT_STD / math.sqrt(recipe.maps)
    first, *others = (
        class_directions(recipe.seed, tables.parents[draft_rows, i], hidden, scale) for i in range(recipe.maps)
    )
    for other in others:
        first += other
    return first


def class_directions(seed: int, classes: Tensor, hidden: int, length: float) -> Tensor:
    """`length` · F[class], F a random direction of norm about 1; float32 [n, H]."""
    return uniform_rows(key_of(seed, "classes' directions"), classes, hidden, length / math.sqrt(hidden))

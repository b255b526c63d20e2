"""The target's tensors in a planted pair.

The layers are zero-mean uniform matrices. Their scale makes attention scores peaky, and all branches together 2.5 times
as large as the embedding (`rows.py`). So the output depends on the context, and the share of the embedding in the
last hidden state does not drift with the context's length.

The embedding of a token is mostly the direction F of its class. The LM head's row of a draft token leans towards F of
the class before it. How far it leans (λ, `Recipe.signal`) is the only dial of acceptance, and it affects no other
tensor.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.experts import TargetExperts, score_scale
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.register import TargetRegister
from specgate.backends.eagle3.lib.planted.rows import (
    ATTENTION,
    LOGIT_STD,
    MLP,
    SCORE,
    SILU_SQUARE,
    bfloat16_matrix,
    branch_scale,
    key_of,
    uniform_rows,
)
from specgate.backends.eagle3.lib.planted.tables import Tables
from specgate.checkpoints.geometry import TargetGeometry

CLASS_SHARE: Final = {"A": 0.8, "B": 0.95}
"""Cosine between a token's embedding and the direction of its class. The rest distinguishes tokens of one class."""


class PlantedTarget:
    """Generates the tensors of one target, one at a time, on `device`."""

    def __init__(self, recipe: Recipe, geometry: TargetGeometry, tables: Tables, device: torch.device) -> None:
        self.recipe, self.geometry, self.device = recipe, geometry, device
        self.tables = tables.to(device)
        self.register = TargetRegister(recipe, geometry) if recipe.maps == 2 else None
        self.experts = TargetExperts(recipe, geometry, tables, device) if geometry.experts else None

    def make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor with that canonical name, bfloat16; blocks and scales of experts are uint8."""
        if self.experts and (made := self.experts.make(name, shape)) is not None:
            return made
        if len(shape) == 1:
            # Normed queries and keys get the size that those of other targets have.
            value = math.sqrt(SCORE) if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
            return torch.full(shape, value, dtype=torch.bfloat16, device=self.device)
        height, width = shape
        if name == "model.embed_tokens.weight":
            return bfloat16_matrix((height, width), self.embedding_rows, self.device)
        if name == "lm_head.weight":
            return bfloat16_matrix((height, width), self.head_rows, self.device)
        key, std = key_of(self.recipe.seed, name), self.std(name)
        matrix = bfloat16_matrix((height, width), lambda rows: uniform_rows(key, rows, width, std), self.device)
        if self.register:
            self.register.wire(name, matrix)
        if self.experts:
            self.experts.wire(name, matrix)
        return matrix

    def std(self, name: str) -> float:
        """Standard deviation of the entries of the layer matrix `name`."""
        g = self.geometry
        match name.split(".")[-2]:
            case "q_proj" | "k_proj":
                return score_scale(g) / math.sqrt(g.hidden) if g.experts else math.sqrt(SCORE / g.hidden)
            case "o_proj":
                return branch_scale(g.layers) * ATTENTION / math.sqrt(g.heads * g.head_dim)
            case "down_proj":
                return branch_scale(g.layers) * MLP / math.sqrt(SILU_SQUARE * g.intermediate)
            case _:
                return 1 / math.sqrt(g.hidden)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """√H · (cos φ · F[class] + sin φ · G[token]), float32 [n, H]. cos φ is `CLASS_SHARE`, G a random direction per
        token.
        """
        classes = self.tables.class_of[tokens]
        share = CLASS_SHARE[self.recipe.name]
        rows = class_directions(
            self.recipe.seed, classes, self.geometry.hidden, share * math.sqrt(self.geometry.hidden)
        )
        own = key_of(self.recipe.seed, "tokens")
        rows += uniform_rows(own, tokens, self.geometry.hidden, math.sqrt(1 - share * share))
        if self.register:
            self.register.wire_embedding(rows, self.tables.tau[classes])
        if self.experts:
            self.experts.wire_embedding(rows, tokens)
        return rows

    def head_rows(self, tokens: Tensor) -> Tensor:
        """LM head rows, float32 [n, H]: R · (λ · S + ξ) / √(1 + λ²) for draft tokens, R · ξ for others.

        S is the planted signal (`signal_rows`), ξ random noise, and R the standard deviation of the logits
        (`LOGIT_STD`).
        """
        signal, drafted = self.recipe.signal, self.tables.row_of[tokens] >= 0
        # Multiply, do not divide: division by a scalar rounds differently on CPU and GPU.
        noise_share, signal_share = 1 / math.sqrt(1 + signal * signal), signal / math.sqrt(1 + signal * signal)
        rows = self.noise_rows(tokens)
        planted = self.signal_rows(self.tables.row_of[tokens[drafted]]).mul_(signal_share)
        rows[drafted] = rows[drafted].mul_(noise_share) + planted
        if self.register:
            self.register.wire_head(rows, torch.where(drafted, self.tables.sign[self.tables.row_of[tokens]], 0))
        return rows

    def split_states(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Split normed last hidden states [T, H] by what the LM head makes of them.

        Returns the states as signal and noise see them [T, H], and a logit [T] that is added to draft tokens of sign +1
        and subtracted from those of sign −1.
        """
        if self.register is None:
            return normed, normed.new_zeros(len(normed))
        return self.register.split_states(normed)

    def noise_rows(self, tokens: Tensor) -> Tensor:
        """R · ξ, float32 [n, H]."""
        key = key_of(self.recipe.seed, "lm_head noise")
        return uniform_rows(key, tokens, self.geometry.hidden, LOGIT_STD / math.sqrt(self.geometry.hidden))

    def signal_rows(self, draft_rows: Tensor) -> Tensor:
        """R · S, float32 [n, H]. S is F of the class before, or (F + F′) / √2 where recipe B has two of them."""
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
    """`length` · F[class], where F is a random direction of norm about 1; float32 [n, H]."""
    return uniform_rows(key_of(seed, "classes' directions"), classes, hidden, length / math.sqrt(hidden))

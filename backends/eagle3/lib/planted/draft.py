"""The draft's tensors in a planted pair.

Every position attends almost only to itself. Attention adds a projection QᵀQ of the new token's embedding to the hidden
state and subtracts the previous token's. The rows of the LM head are the directions F of the class before, so the draft
proposes the successor of the newest token at every depth.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.register import DraftRegister
from specgate.backends.eagle3.lib.planted.rows import (
    SILU_SQUARE,
    bfloat16_matrix,
    draws,
    key_of,
    shuffled,
    uniform_rows,
)
from specgate.backends.eagle3.lib.planted.tables import Tables
from specgate.backends.eagle3.lib.planted.target import signal_rows
from specgate.checkpoints.geometry import DraftGeometry

SELF_SCORE: Final = 10.0
"""The attention score of a position with itself is about this · √head_dim. Other scores have about this deviation."""
FEATURE_NOISE: Final = 0.3
MLP_NOISE: Final = 0.1
"""Size of what the auxiliary hidden states and the MLP add, relative to the copied embedding."""
HIDDEN_NOISE: Final = 0.02
"""Weight of the hidden state in keys and queries, relative to that of the embedding."""


class PlantedDraft:
    """Generates the tensors of one draft, one at a time, on `device`."""

    def __init__(self, recipe: Recipe, geometry: DraftGeometry, tables: Tables, device: torch.device) -> None:
        self.recipe, self.geometry, self.device = recipe, geometry, device
        self.tables = tables.to(device)
        self.answers_for = self.tables.answer.argsort()
        """Draft row → the planted row of the target for which the draft proposes this one: the inverse of
        `Tables.answer`.
        """
        copying = geometry.kv_heads - (recipe.maps - 1)
        self.copied = math.sqrt(copying * geometry.head_dim / geometry.hidden)
        """Root mean square of the copied embedding QᵀQ·n(e), where n is the norm. Recipe B needs one head group for the
        register.
        """
        self.register = DraftRegister(geometry, self.copied) if recipe.maps == 2 else None

    def make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor with that canonical name: `d2t` int64, `t2d` bool, all others bfloat16."""
        if name == "d2t":
            return self.tables.ids - torch.arange(shape[0], device=self.device)
        if name == "t2d":
            return self.tables.row_of >= 0
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16, device=self.device)
        height, width = shape
        matrix = self.matrix(name, height, width)
        if self.register:
            self.register.wire(name, matrix)
        return matrix

    def matrix(self, name: str, height: int, width: int) -> Tensor:
        match name.split(".")[-2]:
            case "lm_head":
                return bfloat16_matrix((height, width), self.head_rows, self.device)
            case "q_proj" | "k_proj":
                return self.self_peaked(name, height, width)
            case "v_proj":
                return self.copy_in()
            case "o_proj":
                return self.copy_out()
            case _:
                key, std = key_of(self.recipe.seed, f"draft {name}"), self.std(name)
                return bfloat16_matrix((height, width), lambda rows: uniform_rows(key, rows, width, std), self.device)

    def std(self, name: str) -> float:
        """Standard deviation of the entries of the random matrix `name`."""
        g = self.geometry
        match name.split(".")[-2]:
            case "fc":
                return FEATURE_NOISE * self.copied / math.sqrt(g.features * g.target_hidden)
            case "down_proj":
                return MLP_NOISE * self.copied / math.sqrt(SILU_SQUARE * g.intermediate)
            case _:
                return 1 / math.sqrt(g.hidden)

    def head_rows(self, rows: Tensor) -> Tensor:
        """LM head rows: R · S of the planted row that each draft row answers for; float32 [n, H]."""
        planted = self.answers_for[rows]
        made = signal_rows(self.recipe, self.tables, planted, self.geometry.hidden)
        if self.register:
            self.register.wire_head(made, self.tables.sign[planted])
        return made

    def self_peaked(self, name: str, height: int, width: int) -> Tensor:
        """Keys, and queries that repeat them for each head of a group: a position attends to its own embedding."""
        g, key = self.geometry, key_of(self.recipe.seed, "draft keys")
        group = g.heads // g.kv_heads if name.endswith("q_proj.weight") else 1
        scale = torch.full((width,), math.sqrt(SELF_SCORE / g.hidden), device=self.device)
        scale[g.hidden :] *= HIDDEN_NOISE

        def rows(indices: Tensor) -> Tensor:
            head, channel = indices // g.head_dim, indices % g.head_dim
            return uniform_rows(key, head // group * g.head_dim + channel, width, 1.0) * scale

        return bfloat16_matrix((height, width), rows, self.device)

    def copy_in(self) -> Tensor:
        """The value projection [Q | −c·Q]: adds the new embedding and subtracts what the hidden state holds.

        c is the root mean square of the hidden state, which undoes the norm in front of the projection.
        """
        q = self.projection()
        scale = self.register.norm if self.register else self.copied
        return torch.cat((q, -scale * q), dim=1).to(torch.bfloat16)

    def copy_out(self) -> Tensor:
        """The output projection Qᵀ, shared evenly among the heads of each group."""
        g = self.geometry
        group = g.heads // g.kv_heads
        q = self.projection().view(g.kv_heads, 1, g.head_dim, g.hidden)
        return (
            (q / group)
            .expand(-1, group, -1, -1)
            .reshape(g.heads * g.head_dim, g.hidden)
            .t()
            .to(torch.bfloat16)
            .contiguous()
        )

    def projection(self) -> Tensor:
        """Q, float32 [kv_heads · head_dim, H], with orthonormal rows.

        It consists of blocks of a Hadamard matrix whose columns are shuffled and have random signs. The blocks are
        powers of 4 wide, so that every entry is a power of 2 and exact in bfloat16.
        """
        g, seed = self.geometry, self.recipe.seed
        block = max(4**i for i in range(8) if g.hidden % 4**i == 0)
        blocks = g.hidden // block
        hadamard = torch.ones(1, 1, device=self.device)
        while len(hadamard) < block:
            hadamard = torch.cat((torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1)))
        place = shuffled(key_of(seed, "draft columns"), g.hidden).to(self.device)
        sign = 1 - 2 * draws(key_of(seed, "draft signs"), g.hidden, 2).to(self.device)
        rows = torch.arange(g.kv_heads * g.head_dim, device=self.device)
        entries = hadamard[rows // blocks][:, place % block] * sign / math.sqrt(block)
        return torch.where((rows % blocks)[:, None] == place // block, entries, 0.0)

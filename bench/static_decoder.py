"""A Llama decode step in plain torch with a static cache, for torch.compile: what a careful user writes without
kernels.

One token per slot and step. q, k and v are one product, gate and up another. The whole step is one graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.checkpoints.geometry import TargetGeometry

Attention = Literal["sdpa", "matmul"]


class Layer(nn.Module):
    """One decoder layer with its own cache [B, G, P, D]."""

    keys: Tensor
    values: Tensor

    def __init__(self, g: TargetGeometry, slots: int, positions: int, attention: Attention) -> None:
        super().__init__()
        self.g, self.attention = g, attention
        self.input_norm, self.post_norm = (nn.RMSNorm(g.hidden, eps=g.rms_eps) for _ in range(2))
        self.qkv = nn.Linear(g.hidden, (g.heads + 2 * g.kv_heads) * g.head_dim, bias=False)
        self.o = nn.Linear(g.heads * g.head_dim, g.hidden, bias=False)
        self.gate_up = nn.Linear(g.hidden, 2 * g.intermediate, bias=False)
        self.down = nn.Linear(g.intermediate, g.hidden, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(slots, g.kv_heads, positions, g.head_dim))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, visible: Tensor) -> Tensor:
        """x [B, 1, H] at `position` [1] → [B, 1, H]; cos, sin [1, D/2]; `visible` bool [P] are the positions seen."""
        x = x + self.o(self.attend(self.qkv(self.input_norm(x)), position, cos, sin, visible))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out

    def attend(self, qkv: Tensor, position: Tensor, cos: Tensor, sin: Tensor, visible: Tensor) -> Tensor:
        g, slots = self.g, len(qkv)
        q, k, v = torch.split(qkv.view(slots, -1, g.head_dim), [g.heads, g.kv_heads, g.kv_heads], dim=1)
        self.keys.index_copy_(2, position, rotated(k, cos, sin).unsqueeze(2))
        self.values.index_copy_(2, position, v.unsqueeze(2))
        # Query heads that share a key/value head become rows of one product, so that no key is repeated.
        rows = rotated(q, cos, sin).view(slots, g.kv_heads, g.heads // g.kv_heads, g.head_dim)
        if self.attention == "sdpa":
            mixed = F.scaled_dot_product_attention(
                rows, self.keys, self.values, attn_mask=visible.expand(rows.shape[2], -1)
            )
        else:
            scores = rows @ self.keys.transpose(-1, -2) * g.head_dim**-0.5
            scores = scores.float().masked_fill(~visible, float("-inf"))
            mixed = scores.softmax(-1).to(rows.dtype) @ self.values
        return mixed.reshape(slots, 1, g.heads * g.head_dim)


class StaticDecoder(nn.Module):
    """`layers` layers of `geometry`, with embedding and LM head, for `slots` slots of up to `positions` positions."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, geometry: TargetGeometry, layers: int, slots: int, positions: int, attention: Attention = "sdpa"
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(geometry.vocab, geometry.hidden)
        self.layers = nn.ModuleList(Layer(geometry, slots, positions, attention) for _ in range(layers))
        self.norm = nn.RMSNorm(geometry.hidden, eps=geometry.rms_eps)
        self.lm_head = nn.Linear(geometry.hidden, geometry.vocab, bias=False)
        self.positions = positions
        for name, table in zip(("cos", "sin"), cos_sin_table(geometry.rope, positions, "cpu"), strict=True):
            self.register_buffer(name, table)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """The greedy next token [B, 1] after `token` [B, 1] at `position` int64 [1]."""
        return self.logits(token, position).argmax(-1)

    def logits(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.embed(token)
        cos, sin = (table[position].to(x.dtype) for table in (self.cos, self.sin))
        visible = torch.arange(self.positions, device=token.device) <= position
        for layer in self.layers:
            x = layer(x, position, cos, sin, visible)
        out: Tensor = self.lm_head(self.norm(x))
        return out

    @torch.no_grad()
    def randomise(self) -> None:
        """Random weights that keep the variance of the hidden states, and a cache of noise, as after a long prompt."""
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.dim() == 2 and name not in ("cos", "sin"):
                tensor.normal_(0.0, tensor.shape[-1] ** -0.5)
            elif name.endswith(("keys", "values")):
                tensor.normal_()

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights of a Hugging Face Llama."""
        self.embed.weight.copy_(weights["model.embed_tokens.weight"])
        self.norm.weight.copy_(weights["model.norm.weight"])
        self.lm_head.weight.copy_(weights["lm_head.weight"])
        for i, layer in enumerate(self.layers):
            parts = {
                "input_norm": ("input_layernorm",),
                "post_norm": ("post_attention_layernorm",),
                "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "o": ("self_attn.o_proj",),
                "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
                "down": ("mlp.down_proj",),
            }
            for mine, theirs in parts.items():
                whole = torch.cat([weights[f"model.layers.{i}.{name}.weight"] for name in theirs])
                layer.get_parameter(f"{mine}.weight").copy_(whole)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, D] rotated in the half-split layout."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

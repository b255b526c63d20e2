"""A dense target in plain torch, position by position where it matters, over keys and values that are given.

It shares nothing with the engine but its weights: every row looks at whichever positions a test says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.checkpoints.geometry import TargetGeometry

Sees = Callable[[int, int, int], list[int]]
"""(layer, query head, row) → the positions that it looks at."""


@dataclass
class TargetByHand:
    """`k[layer]`, `v[layer]` [P, G, D]: of the positions as far as rows have run."""

    weights: TargetWeights
    geometry: TargetGeometry
    k: list[Tensor] = field(init=False)
    v: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        nothing = torch.empty(0, self.geometry.kv_heads, self.geometry.head_dim)
        self.k, self.v = ([nothing for _ in self.weights.layers] for _ in range(2))

    def run(self, tokens: list[int], first: int, sees: Sees) -> tuple[Tensor, list[Tensor]]:
        """Logits [T, V] of `tokens` at positions `first` …, and the queries [N, T, D] of every layer."""
        g, streams = self.geometry, list[Tensor]()
        x = self.weights.embed[torch.tensor(tokens)]
        for index, layer in enumerate(self.weights.layers):
            packed = self.normed(x, layer.input_norm) @ layer.qkv.T
            heads = packed.view(len(tokens), g.heads + 2 * g.kv_heads, g.head_dim)
            turned = torch.stack([self.turned(heads[t, : -g.kv_heads], first + t) for t in range(len(tokens))])
            q = turned[:, : g.heads].transpose(0, 1)
            streams.append(q)
            self.k[index] = torch.cat((self.k[index][:first], turned[:, g.heads :]))
            self.v[index] = torch.cat((self.v[index][:first], heads[:, -g.kv_heads :]))
            rows = []
            for t in range(len(tokens)):
                mixed = []
                for head in range(g.heads):
                    group, seen = head // (g.heads // g.kv_heads), sees(index, head, t)
                    keys, values = self.k[index][seen, group], self.v[index][seen, group]
                    mixed.append(torch.softmax(keys @ q[head, t] / g.head_dim**0.5, dim=0) @ values)
                rows.append(torch.cat(mixed))
            x = x + torch.stack(rows) @ layer.o.T
            gate, up = (self.normed(x, layer.post_norm) @ layer.gate_up.T).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * up) @ layer.down.T
        return self.normed(x, self.weights.norm) @ self.weights.lm_head.T, streams

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + self.geometry.rms_eps).sqrt() * weight

    def turned(self, heads: Tensor, position: int) -> Tensor:
        """RoPE, with the default frequencies of base 10,000."""
        half = self.geometry.head_dim // 2
        angles = position * 10000.0 ** (-torch.arange(half) / half)
        a, b = heads[:, :half], heads[:, half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=1)

"""What the parts of a step should give, in float64 and by loops that share no code with the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.target import RopeTable


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, K] · weightᵀ [K, N]."""
    return x.double() @ weight.double().T


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def silu_mul(gate_up: Tensor) -> Tensor:
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half].double(), gate_up[..., half:].double()
    return gate / (1 + torch.exp(-gate)) * up


def attention(
    qkv: Tensor, table: RopeTable, k: Tensor, v: Tensor, start: int, heads: int, window: int | None
) -> Tensor:
    """Rows [B, T, (N + 2G)·D] at positions `start` … after the cached k and v [B, G, ≥ start, D]; returns [B, T, N·D].

    A pair of dimensions (i, i + D/2) is a complex number, which its position turns.
    """
    kv_heads, dim = k.shape[1], k.shape[3]
    rows = qkv.double().view(*qkv.shape[:2], heads + 2 * kv_heads, dim).transpose(1, 2)
    q, new_k, new_v = rows[:, :heads], rows[:, heads : heads + kv_heads], rows[:, heads + kv_heads :]
    cos, sin = (part[start : start + qkv.shape[1]].double() for part in table)
    turn = torch.complex(cos, sin)
    keys = torch.cat((k[:, :, :start].double(), turned(new_k, turn)), dim=2)
    values = torch.cat((v[:, :, :start].double(), new_v), dim=2)
    group = heads // kv_heads
    scores = turned(q, turn) @ keys.repeat_interleave(group, dim=1).transpose(2, 3) / math.sqrt(dim)
    at, seen = start + torch.arange(qkv.shape[1])[:, None], torch.arange(keys.shape[2])
    hidden = seen > at if window is None else (seen > at) | (seen <= at - window)
    mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ values.repeat_interleave(group, dim=1)
    return mixed.transpose(1, 2).flatten(2)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    low, high = x[..., :half].contiguous(), x[..., half:].contiguous()
    found = torch.complex(low, high) * turn
    return torch.cat((found.real, found.imag), dim=-1)


def longest_common(drafts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
    """How many drafts of each slot are accepted."""
    counts = []
    for chain, said in zip(drafts, targets, strict=True):
        count = 0
        while count < len(chain) and chain[count] == said[count]:
            count += 1
        counts.append(count)
    return torch.tensor(counts)


def largest(logits: Tensor) -> Tensor:
    """The lowest index of the largest of each row [R, V]."""
    return torch.tensor([max(range(len(row)), key=lambda i: (row[i], -i)) for row in logits.tolist()])

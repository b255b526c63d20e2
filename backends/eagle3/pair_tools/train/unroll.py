"""Training-time test: the draft unrolled over its own hidden states, from every position of a batch at once.

An engine that drafts from position p runs step 0 on the target's features at p. Step j runs at position q = p + j, on
the hidden state that step j − 1 left at q − 1. So the query of step j at position q belongs to the chain that started
at p = q − j. It sees

    the keys of step 0 (from features) at positions ≤ q − j, and
    the chain's own keys: that of step i at position q − j + i, for i = 1 … j.

The first part is causal attention that stops j positions early. The second adds one key per earlier step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.weights import DraftWeights
from specgate.backends.eagle3.reference.draft import draft_input, project_features
from specgate.backends.eagle3.reference.ops import matmul_rows, rms_norm, rope
from specgate.backends.eagle3.reference.target import RopeTable, mlp
from specgate.checkpoints.geometry import DraftGeometry


def chain_step(
    w: DraftWeights,
    geometry: DraftGeometry,
    rows: RopeTable,
    hidden: Tensor,
    next_tokens: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The draft's layer at step len(keys).

    Returns its output hidden states [B, T, Hd], and the keys and values [B, T, G, D] that it adds.
    """
    mixed_input, residual = draft_input(w, geometry, next_tokens, hidden)
    q, k, v = split_and_rotate(matmul_rows(mixed_input, w.layer.qkv), rows, geometry.heads, geometry.kv_heads)
    mixed = chain_attention(q, [*keys, k], [*values, v], geometry.window)
    return mlp(w.layer, residual + matmul_rows(mixed, w.layer.o), geometry.rms_eps), k, v


ChainStep = Callable[
    [DraftWeights, DraftGeometry, RopeTable, Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]],
    tuple[Tensor, Tensor, Tensor],
]


def unroll(
    w: DraftWeights,
    geometry: DraftGeometry,
    rows: RopeTable,
    features: Tensor,
    next_tokens: Tensor,
    steps: int,
    step: ChainStep = chain_step,
) -> Iterator[Tensor]:
    """Yield the draft logits [B, T, W] of steps 0 … steps − 1. Row q of every step predicts the token at position q +
    2.

    `features` [B, T, n·H] are the target's auxiliary hidden states. `next_tokens` [B, T] holds the token after each
    position. `rows` are cos and sin [1, T, 1, D/2]. `step` is `chain_step`, plain or compiled.

    Row q of step j belongs to the chain that started at q − j, so rows q < j have no meaning.
    """
    hidden = project_features(w, geometry, features)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for _ in range(steps):
        stream, key, value = step(w, geometry, rows, hidden, next_tokens, keys, values)
        keys.append(key)
        values.append(value)
        normed = rms_norm(stream, w.norm, geometry.rms_eps)
        yield matmul_rows(normed, w.lm_head)
        hidden = shift_right(normed if geometry.norm_output else stream, 1)


def split_and_rotate(qkv: Tensor, rows: RopeTable, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Packed [B, T, (N + 2G)·D] → q [B, T, N, D], k and v [B, T, G, D]. q and k are rotated in float32."""
    parts = qkv.view(*qkv.shape[:2], heads + 2 * kv_heads, -1)
    rotated = rope(parts[:, :, : heads + kv_heads].float(), *rows).to(qkv.dtype)
    return rotated[:, :, :heads], rotated[:, :, heads:], parts[:, :, heads + kv_heads :]


def shift_right(x: Tensor, by: int) -> Tensor:
    """`x` [B, T, …] moved `by` positions later. The first `by` rows become zero."""
    return torch.cat((torch.zeros_like(x[:, :by]), x[:, : x.shape[1] - by]), dim=1)


def chain_attention(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], window: int | None) -> Tensor:
    """Attention of step j = len(keys) − 1. Returns [B, T, N·D].

    The queries q [B, T, N, D] see keys[i] and values[i] [B, T, G, D] of the steps i ≤ j. Positions are cut into blocks
    of the window's length. A query sees its own block and the one before, so the cost is linear in T.
    """
    length, step = q.shape[1], len(keys) - 1
    block = min(window or length, length)
    pad = (0, 0, 0, 0, 0, -length % block)
    repeat = q.shape[2] // keys[0].shape[2]
    q = grouped_blocks(F.pad(q, pad), block, repeat)
    near_k, near_v = (with_previous(blocks(F.pad(x, pad), block)) for x in (keys[0], values[0]))
    chain_k, chain_v = (
        [chain_rows(F.pad(shift_right(x, step - i), pad), block, repeat) for i, x in enumerate(xs) if i]
        for xs in (keys, values)
    )
    near = (q @ near_k.transpose(-1, -2)).masked_fill(~near_view(block, step, repeat, q), -torch.inf)
    scores = torch.cat([near, *((q * k).sum(-1, keepdim=True) for k in chain_k)], dim=-1)
    weights = (scores.float() * q.shape[-1] ** -0.5).softmax(dim=-1).to(q.dtype)
    mixed = weights[..., : 2 * block] @ near_v
    for i, v in enumerate(chain_v):
        mixed = mixed + weights[..., 2 * block + i, None] * v
    return ungrouped(mixed, repeat)[:, :length]


def blocks(x: Tensor, block: int) -> Tensor:
    """[B, n·C, G, D] → [B, n, G, C, D] with C = `block`."""
    return x.reshape(len(x), -1, block, *x.shape[2:]).transpose(2, 3)


def grouped_blocks(q: Tensor, block: int, repeat: int) -> Tensor:
    """[B, n·C, G·R, D] → [B, n, G, R·C, D], with C = `block`.

    The R query heads that share a key head become rows of one product.
    """
    batch, length, heads, dim = q.shape
    return blocks(q, block).reshape(batch, length // block, heads // repeat, repeat * block, dim)


def ungrouped(x: Tensor, repeat: int) -> Tensor:
    """The inverse of `grouped_blocks`, with the heads joined: [B, n, G, R·C, D] → [B, n·C, G·R·D]."""
    split = x.reshape(*x.shape[:3], repeat, -1, x.shape[4])
    return split.permute(0, 1, 4, 2, 3, 5).flatten(3, 5).flatten(1, 2)


def with_previous(x: Tensor) -> Tensor:
    """Each block together with the one before it: [B, n, G, C, D] → [B, n, G, 2·C, D]. Zeros precede the first."""
    return torch.cat((shift_right(x, 1), x), dim=3)


def near_view(block: int, step: int, repeat: int, q: Tensor) -> Tensor:
    """Mark the 2·C keys that the R·C query rows of each block see, bool [n, 1, R·C, 2·C].

    These are the keys at a distance of at least `step` and less than C.
    """
    row = torch.arange(block, device=q.device)
    distance = (block + row[:, None] - torch.arange(2 * block, device=q.device)).repeat(repeat, 1)
    start = block * torch.arange(q.shape[1], device=q.device)[:, None, None, None]
    position = start + row.repeat(repeat)[:, None]
    return (distance >= step) & (distance < block) & (distance <= position)


def chain_rows(x: Tensor, block: int, repeat: int) -> Tensor:
    """[B, n·C, G, D] → [B, n, G, R·C, D]: one key (or value) of its own for each query row."""
    cut = blocks(x, block).unsqueeze(3)
    return cut.expand(-1, -1, -1, repeat, -1, -1).flatten(3, 4)

"""One prompt at a time into the cache, with cuBLAS and torch's attention: layer by layer, in chunks of rows.

The residual stream is float32. Operands and results of cuBLAS are bfloat16. Attention is over the whole prompt, and all
else is done chunk by chunk. So only the stream, one layer's q, k, v and the features are as long as the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK
from specgate.backends.cupy_eagle3.memory.buffers import Pages
from specgate.backends.cupy_eagle3.memory.model import Draft, RopeTable, Target
from specgate.eagle3.geometry import DraftGeometry, TargetGeometry
from specgate.eagle3.weights import LayerWeights, TargetWeights

CHUNK = 4096
"""Rows per product. It is a constant, so that the bits of a prompt do not depend on what else is prefilled."""


def prefill_target(
    target: Target, pages: Pages, tokens: Tensor, blocks: Tensor, boundaries: tuple[int, ...], chunk: int = CHUNK
) -> tuple[Tensor, Tensor | None]:
    """Run `tokens` (int64 [P]) and fill the cache blocks `blocks` (int64, in order of position).

    Returns the stream float32 [P, H] before the final norm, and the captured streams bfloat16 [P, n·H].
    """
    g, w = target.geometry, target.weights
    assert isinstance(w, TargetWeights)
    x = torch.empty(len(tokens), g.hidden, dtype=torch.float32, device=tokens.device)
    for rows in chunks(len(tokens), chunk):
        x[rows] = w.embed[tokens[rows]].float()
    features = x.new_empty(len(tokens), len(boundaries) * g.hidden, dtype=torch.bfloat16) if boundaries else None
    capture(features, x, boundaries, 0)
    for i, layer in enumerate(w.layers):
        q, k, v = (
            x.new_empty(len(tokens), n, g.head_dim, dtype=torch.bfloat16) for n in (g.heads, g.kv_heads, g.kv_heads)
        )
        for rows in chunks(len(tokens), chunk):
            qkv = F.linear(rms_norm(x[rows], layer.input_norm, g.rms_eps), layer.qkv)
            q[rows], k[rows], v[rows] = rotated(qkv, target.rope, rows, g)
        write_pages(pages, i, blocks, k, v)
        mixed = causal_attention(q, k, v)
        for rows in chunks(len(tokens), chunk):
            x[rows] += F.linear(mixed[rows], layer.o)
            x[rows] += mlp(rms_norm(x[rows], layer.post_norm, g.rms_eps), layer)
        capture(features, x, boundaries, i + 1)
    return x, features


def prefill_draft(
    draft: Draft, pages: Pages, tokens: Tensor, blocks: Tensor, features: Tensor, chunk: int = CHUNK
) -> None:
    """Fill the draft's cache for all positions whose next token is known, which are all but the prompt's last.

    Keys and values of a draft of one layer depend on features and tokens alone, so nothing else is computed.
    """
    g, w, count = draft.geometry, draft.weights, len(tokens) - 1
    if count == 0:
        return
    k, v = (features.new_empty(count, g.kv_heads, g.head_dim) for _ in range(2))
    for rows in chunks(count, chunk):
        hidden = F.linear(feature_norms(features[rows], draft), w.fc).float()
        embedded = w.embed[tokens[rows.start + 1 : rows.stop + 1]].float()
        mixed = torch.cat(
            (rms_norm(embedded, w.layer.input_norm, g.rms_eps), rms_norm(hidden, w.feature_norm, g.rms_eps)), dim=-1
        )
        _, k[rows], v[rows] = rotated(F.linear(mixed, w.layer.qkv), draft.rope, rows, g)
    write_pages(pages, 0, blocks, k, v)


def workspace_bytes(target: TargetGeometry, draft: DraftGeometry | None, positions: int, chunk: int = CHUNK) -> int:
    """Most bytes that the prefill of a prompt of `positions` tokens takes beside weights and cache."""
    g, rows = target, min(chunk, positions)
    whole = 4 * g.hidden + 2 * (2 * g.heads + 4 * g.kv_heads) * g.head_dim
    if draft:
        whole += 2 * draft.features * g.hidden
    wide = max(2 * g.intermediate, (g.heads + 2 * g.kv_heads) * g.head_dim)
    return positions * whole + rows * (12 * wide + 12 * g.hidden)


def chunks(count: int, chunk: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk, count)) for start in range(0, count, chunk))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of float32 [R, H] in float32; the result is rounded to bfloat16 once."""
    return F.rms_norm(x, (x.shape[-1],), weight.float(), eps).bfloat16()


def feature_norms(features: Tensor, draft: Draft) -> Tensor:
    g, w = draft.geometry, draft.weights
    if w.concat_norm is not None:
        return rms_norm(features.float(), w.concat_norm, g.rms_eps)
    if w.chunk_norms:
        parts = features.float().chunk(g.features, dim=-1)
        return torch.cat([rms_norm(p, n, g.rms_eps) for p, n in zip(parts, w.chunk_norms, strict=True)], dim=-1)
    return features


def mlp(x: Tensor, w: LayerWeights) -> Tensor:
    gate, up = F.linear(x, w.gate_up).chunk(2, dim=-1)
    return F.linear((F.silu(gate.float()) * up.float()).bfloat16(), w.down)


def rotated(
    qkv: Tensor, table: RopeTable, rows: slice, g: TargetGeometry | DraftGeometry
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [R, heads, D] of a packed projection bfloat16 [R, (N + 2G)·D]; q and k rotated in float32."""
    parts = qkv.view(len(qkv), g.heads + 2 * g.kv_heads, g.head_dim)
    q, k, v = torch.split(parts, [g.heads, g.kv_heads, g.kv_heads], dim=1)
    cos, sin = (t[rows].unsqueeze(1) for t in table)
    return rope(q.float(), cos, sin).bfloat16(), rope(k.float(), cos, sin).bfloat16(), v


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [P, N, D] over k, v [P, G, D]: each position sees itself and those before it. Returns [P, N·D]."""
    query, key, value = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1).flatten(1)


def write_pages(pages: Pages, layer: int, blocks: Tensor, k: Tensor, v: Tensor) -> None:
    """k, v [P', G, D] of positions 0 … P' − 1 into their blocks; the rest of the last block becomes zeros."""
    used = blocks[: -(-len(k) // BLOCK)]
    pad = len(used) * BLOCK - len(k)
    k, v = (F.pad(t, (0, 0, 0, 0, 0, pad)).view(len(used), BLOCK, *t.shape[1:]) for t in (k, v))
    pages.k[layer, used] = k.transpose(1, 2)
    pages.v[layer, used] = v.permute(0, 2, 3, 1)


def capture(features: Tensor | None, x: Tensor, boundaries: tuple[int, ...], boundary: int) -> None:
    if features is None:
        return
    width = x.shape[-1]
    for chunk, wanted in enumerate(boundaries):
        if wanted == boundary:
            features[:, chunk * width : (chunk + 1) * width] = x

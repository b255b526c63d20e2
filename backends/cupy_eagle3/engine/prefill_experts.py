"""One prompt of a target with a mixture of experts into the cache: as `prefill.py` does it for a dense target.

Attention has sinks and windows, projections have biases, and the rows that go to an expert are multiplied together,
with its weights decoded to bfloat16 for that. What a prompt gives depends on nothing but the prompt.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.cupy_eagle3.engine.prefill import CHUNK, capture, chunks, rms_norm, rotated, write_pages
from specgate.backends.cupy_eagle3.memory.buffers import Pages
from specgate.backends.cupy_eagle3.memory.expert_weights import ExpertLayerWeights, ExpertTargetWeights
from specgate.backends.cupy_eagle3.memory.model import Target
from specgate.eagle3.geometry import ExpertGeometry, TargetGeometry

ROWS: Final = 32768
"""Rows that are sent to the experts together. Each expert is decoded once for them."""
WINDOWS: Final = 32
"""Windows of queries that attend together: their scores take 270 MB for 64 heads and windows of 128."""


def prefill_expert_target(
    target: Target, pages: Pages, tokens: Tensor, blocks: Tensor, boundaries: tuple[int, ...], chunk: int = CHUNK
) -> tuple[Tensor, Tensor | None]:
    """As `prefill.prefill_target`."""
    g, w = target.geometry, target.weights
    assert isinstance(w, ExpertTargetWeights) and g.experts is not None
    x = w.embed[tokens].float()
    features = x.new_empty(len(tokens), len(boundaries) * g.hidden, dtype=torch.bfloat16) if boundaries else None
    capture(features, x, boundaries, 0)
    for i, layer in enumerate(w.layers):
        q, k, v = (
            x.new_empty(len(tokens), n, g.head_dim, dtype=torch.bfloat16) for n in (g.heads, g.kv_heads, g.kv_heads)
        )
        for rows in chunks(len(tokens), chunk):
            qkv = F.linear(rms_norm(x[rows], layer.input_norm, g.rms_eps), layer.qkv, layer.qkv_bias)
            q[rows], k[rows], v[rows] = rotated(qkv, target.rope, rows, g)
        write_pages(pages, i, blocks, k, v)
        mixed = attention_with_sinks(q, k, v, layer.sinks, g.window(i))
        for rows in chunks(len(tokens), chunk):
            x[rows] += F.linear(mixed[rows], layer.o, layer.o_bias)
        for rows in chunks(len(tokens), ROWS):
            x[rows] += mixture(rms_norm(x[rows], layer.post_norm, g.rms_eps), layer, g.experts)
        capture(features, x, boundaries, i + 1)
    return x, features


def expert_workspace_bytes(g: TargetGeometry, positions: int) -> int:
    """Most bytes that a prefill of `positions` tokens takes beside what a dense target's takes: of a mixture, the parts
    of its rows, and one expert with the steps of its decoding; of attention, wider heads and the scores of windows,
    which torch holds four times in float32.
    """
    assert g.experts is not None
    rows, k = min(positions, ROWS), g.experts.per_token
    parts = rows * k * (4 * g.hidden + 8 * 8)
    busiest = rows * (2 * g.hidden + 4 * 4 * g.intermediate + 4 * g.hidden)
    attention = positions * 2 * (2 * g.heads + 4 * g.kv_heads) * (g.head_dim + 8)
    window = max((g.window(layer) or 0 for layer in range(g.layers)), default=0)
    scores = 4 * 4 * min(WINDOWS * window, positions) * g.heads * (2 * window + 1)
    return parts + busiest + attention + scores + 2 * g.intermediate * g.hidden * 12


def attention_with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
    """q [P, N, D] over k, v [P, G, D]: each position sees itself and those before it, at most `window` in all. The
    logit `sinks` [N] of a head takes a share of the softmax, and has no value. Returns [P, N·D].

    A sink becomes one more key, whose value is zero. Query heads that share a key/value head share that key, and each
    has a coordinate of its own in it: there the query is √D, which the softmax's scale takes away again.
    """
    group = q.shape[1] // k.shape[1]
    more = -(-group // 8) * 8  # fast attention takes heads of a multiple of 8
    own = torch.eye(group, more, dtype=q.dtype, device=q.device) * math.sqrt(q.shape[2])
    wide = torch.cat((q, own.repeat(k.shape[1], 1).expand(len(q), -1, -1)), dim=-1)
    sink_keys = F.pad(sinks.to(k.dtype).view(k.shape[1], group), (k.shape[2], more - group))
    keys, values = F.pad(k, (0, more)), F.pad(v, (0, more))
    seen = whole_prompt if window is None or window >= len(q) else sliding_windows
    return seen(wide, keys, values, sink_keys, window or 0, 1 / math.sqrt(q.shape[2]))[..., : q.shape[2]].flatten(1)


def whole_prompt(q: Tensor, k: Tensor, v: Tensor, sink_keys: Tensor, window: int, scale: float) -> Tensor:
    """q [P, N, D] over k, v [P, G, D] and one more key [G, D] without a value: [P, N, D].

    That key comes first, where every query sees it, and before the queries comes one that nobody asks for.
    """
    keys = torch.cat((sink_keys[None], k)).transpose(0, 1)[None]
    query, value = (F.pad(t, (0, 0, 0, 0, 1, 0)).transpose(0, 1)[None] for t in (q, v))
    out = F.scaled_dot_product_attention(query, keys, value, is_causal=True, scale=scale, enable_gqa=True)
    return out[0, :, 1:].transpose(0, 1)


def sliding_windows(q: Tensor, k: Tensor, v: Tensor, sink_keys: Tensor, window: int, scale: float) -> Tensor:
    """As `whole_prompt`, where a query sees `window` positions: a window of queries needs two windows of keys."""
    count = -(-len(q) // window)
    pad = count * window - len(q)
    query = F.pad(q, (0, 0, 0, 0, 0, pad)).view(count, window, *q.shape[1:]).transpose(1, 2)
    keys, value = (
        F.pad(t, (0, 0, 0, 0, window, pad)).unfold(0, 2 * window, window).transpose(2, 3) for t in (k, v)
    )  # [count, G, 2 · window, D]
    row, column = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)
    visible = F.pad((column > row) & (column <= row + window), (0, 1), value=True)
    first = visible.clone()
    first[:, :window] = False
    parts = []
    for some in chunks(count, WINDOWS):
        with_sink = torch.cat((keys[some], sink_keys[None, :, None].expand(len(keys[some]), -1, -1, -1)), dim=2)
        mask = visible.expand(len(with_sink), 1, -1, -1).clone()
        if some.start == 0:
            mask[0] = first
        out = F.scaled_dot_product_attention(
            *(query[some], with_sink, F.pad(value[some], (0, 0, 0, 1))), attn_mask=mask, scale=scale, enable_gqa=True
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[: len(q)]


def mixture(x: Tensor, w: ExpertLayerWeights, experts: ExpertGeometry) -> Tensor:
    """The weighted sum of each row's experts, float32 [R, H], for normed rows `x` bfloat16 [R, H]."""
    logits = F.linear(x.float(), w.router.float(), w.router_bias.float())
    ordered, chosen = logits.sort(dim=-1, descending=True, stable=True)
    k = experts.per_token
    weights = ordered[:, :k].softmax(dim=-1).flatten()
    of_pair = chosen[:, :k].flatten()
    pairs = of_pair.argsort(stable=True)
    ends = list(accumulate(of_pair.bincount(minlength=experts.count).tolist(), initial=0))
    parts = torch.empty(len(pairs), x.shape[1], dtype=torch.float32, device=x.device)
    for expert, (start, end) in enumerate(pairwise(ends)):
        if start == end:
            continue
        its = pairs[start:end]
        both = F.linear(x[its // k], w.gate_up.matrix(expert)).float() + w.gate_up.bias[expert].float()
        gate, up = both[:, ::2].clamp(max=experts.limit), both[:, 1::2].clamp(-experts.limit, experts.limit)
        act = (gate * torch.sigmoid(gate * experts.alpha) * (up + 1)).bfloat16()
        out = F.linear(act, w.down.matrix(expert)).float() + w.down.bias[expert].float()
        parts[its] = out * weights[its, None]
    placed = parts.view(-1, k, x.shape[1])
    total = placed[:, 0]
    for place in range(1, k):
        total = total + placed[:, place]
    return total

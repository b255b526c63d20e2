"""Prompts of a target with a mixture of experts into the cache: as `prefill.py` does it for a dense target.

Attention has sinks and windows, and projections have biases. Prompts go through a layer together, so that its experts
are read once for all of them; yet what a prompt gives depends on nothing but the prompt, since every launch that a
library could do in another way for other sizes is over one prompt alone.

Of the last layer only keys, values and the last row are needed, as of a dense target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import prefill_sinks
from specgate.backends.eagle3.cupy.engine.prefill import (
    CHUNK,
    PrefillMode,
    add,
    cache_heads,
    capture,
    chunks,
    embed,
    of_rows,
)
from specgate.backends.eagle3.cupy.engine.prefill_attention import split_heads
from specgate.backends.eagle3.cupy.engine.prefill_mixture import ROWS, Part, add_mixtures, decoded_bytes
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.prefill.packed.launchers import RECORD, most_row_groups
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.model import ExpertLayerWeights, Target
from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry


@dataclass(frozen=True, slots=True)
class Passage:
    """A prompt on its way through the layers: `tokens` int64 [P], its cache `blocks` int64 in order of position, its
    stream `x` float32 [P, H], the stream's norm `normed` bfloat16 [P, H], and captured streams bfloat16 [P, n·H].
    """

    tokens: Tensor
    blocks: Tensor
    x: Tensor
    normed: Tensor
    features: Tensor | None

    @classmethod
    def begin(
        cls, target: Target, tokens: Tensor, blocks: Tensor, boundaries: tuple[int, ...], mode: PrefillMode
    ) -> Passage:
        g, w = target.geometry, target.weights
        assert not isinstance(w, TargetWeights)
        x = torch.empty(len(tokens), g.hidden, dtype=torch.float32, device=tokens.device)
        features = x.new_empty(len(tokens), len(boundaries) * g.hidden, dtype=torch.bfloat16) if boundaries else None
        normed = embed(x, w.embed, tokens, w.layers[0].input_norm, g.rms_eps, mode)
        capture(features, x, boundaries, 0)
        return cls(tokens, blocks, x, normed, features)

    @property
    def parts(self) -> Iterator[Part]:
        """Return the rows that go to the experts together."""
        every = chunks(self.x.shape[0], ROWS)
        return (Part(of_rows(self.x, rows), of_rows(self.normed, rows)) for rows in every)


def prefill_expert_prompts(
    target: Target,
    pages: Pages,
    prompts: Sequence[tuple[Tensor, Tensor]],
    boundaries: tuple[int, ...],
    mode: PrefillMode,
) -> list[tuple[Tensor, Tensor | None]]:
    """As `prefill.prefill_target`, for prompts of (tokens, blocks)."""
    g, w = target.geometry, target.weights
    assert not isinstance(w, TargetWeights) and g.experts is not None
    passages = [Passage.begin(target, tokens, blocks, boundaries, mode) for tokens, blocks in prompts]
    for i, layer in enumerate(w.layers[:-1]):
        for passage in passages:
            attended(passage, target, pages, i, mode)
        through_experts([part for p in passages for part in p.parts], layer, g, w.layers[i + 1].input_norm, mode)
        for passage in passages:
            capture(passage.features, passage.x, boundaries, i + 1)
    last = [last_row(passage, target, pages, boundaries, mode) for passage in passages]
    if g.layers in boundaries:
        through_experts([part for p in passages for part in p.parts], w.layers[-1], g, w.norm, mode)
        for passage in passages:
            capture(passage.features, passage.x, boundaries, g.layers)
    # By itself in either case: its bits must not depend on whether a draft reads the other rows.
    through_experts(last, w.layers[-1], g, w.norm, mode)
    for passage, part in zip(passages, last, strict=True):
        passage.x[-1:] = part.x
    return [(passage.x, passage.features) for passage in passages]


def together(lengths: Sequence[int]) -> Iterator[range]:
    """Split prompts of these lengths into those that go through the layers together: as many neighbours as have ROWS
    rows, but one at least.
    """
    start = total = 0
    for at, length in enumerate(lengths):
        if at > start and total + length > ROWS:
            yield range(start, at)
            start, total = at, 0
        total += length
    if start < len(lengths):
        yield range(start, len(lengths))


def attended(passage: Passage, target: Target, pages: Pages, i: int, mode: PrefillMode) -> None:
    """A prompt through the attention of layer `i`, and its keys and values into the cache."""
    g, layer = target.geometry, layer_of(target, i)
    q, k, v = queries_keys_values(passage, target, pages, i, mode)
    mixed = mode.attention.with_sinks(q, k, v, layer.sinks, g.window(i))
    add_attention(Part(passage.x, passage.normed), mixed, layer, g, mode)


def last_row(passage: Passage, target: Target, pages: Pages, boundaries: tuple[int, ...], mode: PrefillMode) -> Part:
    """A prompt into the cache of the last layer. Returns its last row behind that layer's attention; the others go
    through it where a boundary lies behind the layer.
    """
    g, i = target.geometry, target.geometry.layers - 1
    layer, part = layer_of(target, i), Part(passage.x[-1:].clone(), torch.empty_like(passage.normed[-1:]))
    q, k, v = queries_keys_values(passage, target, pages, i, mode)
    add_attention(part, prefill_sinks.last_row(q[-1:], k, v, layer.sinks, g.window(i)), layer, g, mode)
    if g.layers in boundaries:
        mixed = mode.attention.with_sinks(q, k, v, layer.sinks, g.window(i))
        add_attention(Part(passage.x, passage.normed), mixed, layer, g, mode)
    return part


def queries_keys_values(
    passage: Passage, target: Target, pages: Pages, i: int, mode: PrefillMode
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries [P, N, D] and keys, and values [P, G, D] of layer `i`; keys and values are cached, too."""
    g, layer = target.geometry, layer_of(target, i)
    heads = Heads.of(g, passage.x.shape[0])
    qkv = passage.normed.new_empty(heads.positions, heads.qkv_width)
    for rows in chunks(heads.positions, mode.chunk):
        torch.addmm(layer.qkv_bias, of_rows(passage.normed, rows), layer.qkv.t(), out=of_rows(qkv, rows))
    cache_heads(qkv, target.rope, pages, i, passage.blocks, heads, mode)
    return split_heads(qkv, heads)


def add_attention(part: Part, mixed: Tensor, layer: ExpertLayerWeights, g: TargetGeometry, mode: PrefillMode) -> None:
    """x += the output projection of `mixed` bfloat16 [R, N·D]; `normed` becomes the norm of x before the experts."""
    for rows in chunks(mixed.shape[0], mode.chunk):
        out = torch.addmm(layer.o_bias, of_rows(mixed, rows), layer.o.t())
        add(of_rows(part.x, rows), out, layer.post_norm, g.rms_eps, mode, of_rows(part.normed, rows))


def through_experts(
    parts: Sequence[Part], layer: ExpertLayerWeights, g: TargetGeometry, following: Tensor, mode: PrefillMode
) -> None:
    """All parts through a layer's experts, as many at a time as have ROWS rows."""
    for some in together([part.x.shape[0] for part in parts]):
        add_mixtures(parts[some.start : some.stop], layer, g, following, mode)


def layer_of(target: Target, i: int) -> ExpertLayerWeights:
    assert not isinstance(target.weights, TargetWeights)
    return target.weights.layers[i]


def expert_workspace_bytes(
    g: TargetGeometry,
    draft: DraftGeometry | None,
    positions: int,
    slots: int,
    *,
    fused: bool = True,
    packed_rows: int = 0,
) -> int:
    """Most bytes that the prefill of prompts of `positions` tokens in `slots` slots takes beside weights and cache.
    `fused` and `packed_rows`: as `PrefillMode` has them.
    """
    assert g.experts is not None
    h, f, k, count = g.hidden, g.intermediate, g.experts.per_token, g.experts.count
    width, queries, window = (g.heads + 2 * g.kv_heads) * g.head_dim, g.heads * g.head_dim, widest_window(g)
    # Of all prompts that go together: the stream, its norm and the features.
    rows = max(positions, min(slots * positions, ROWS))
    lasting = rows * (6 * h + (2 * draft.features * h if draft else 0))
    # Of one prompt: q, k and v, what attention makes of them, its sums and shares; chunks of the output projection.
    part = min(CHUNK, positions)
    attention = positions * (2 * width + 2 * queries + 12 * g.heads) + part * 4 * h
    if not fused:  # wider heads with sinks as keys, and the scores of windows, four times in float32
        wide = 2 * (2 * g.heads + 4 * g.kv_heads) * (g.head_dim + 8)
        scores = 4 * 4 * min(prefill_sinks.WINDOWS * window, positions) * g.heads * (2 * window + 1)
        attention += positions * wide + scores + part * (12 * width + 12 * h)
    # Of pairs: their rows, gates and ups, and the activation; or that, and what the experts give, twice. Then what
    # sorting takes, the router's logits, and the decoded weights. Of torch's operations: the float32 steps of a chunk.
    mixed = min(rows, ROWS)
    sent = mixed * (k * (max(2 * h + 6 * f, 2 * f + 4 * h) + 64) + 8 * count) + decoded_bytes(g)
    if fused and positions <= packed_rows:
        # In place of all that: rows in float16, activations and what the experts give, in row groups; logits, twice.
        pairs = mixed * k
        sent = mixed * (2 * h + 8 * count) + pairs * (2 * f + 2 * h + 16) + 4 * RECORD * most_row_groups(pairs, count)
    if not fused:
        sent += mixed * (4 * h + 16 * count) + min(CHUNK, mixed * k) * (40 * f + 24 * h) + 24 * f * h
    drafting = part * ((10 * draft.features * h) + 26 * draft.hidden) + positions * 4 * draft.hidden if draft else 0
    return lasting + max(attention, sent, drafting)


def widest_window(g: TargetGeometry) -> int:
    return max((g.window(layer) or 0 for layer in range(g.layers)), default=0)

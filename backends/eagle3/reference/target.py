"""The target's forward pass, which also returns the auxiliary hidden states that feed the draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.lib.weights import LayerWeights, TargetWeights, Vocabulary
from specgate.backends.eagle3.reference.cache import KVCache, TreeRows, View, along_paths, view
from specgate.backends.eagle3.reference.kv_planes import Plane, move_rows, read_rows
from specgate.backends.eagle3.reference.ops import (
    attention,
    feature_capture,
    matmul_rows,
    norm_heads,
    rms_norm,
    rope_append,
    silu_mul,
)
from specgate.checkpoints.geometry import RopeSpec, TargetGeometry

RopeTable = tuple[Tensor, Tensor]
Look = Callable[[int, Tensor, Plane, Plane], Tensor]
"""Attention of a layer, by its number: of queries [B, N, T, D] over its keys and values → [B, T, N·D]."""
PREFILL_ROWS: Final = 1024
GPU_PREFILL_ROWS: Final = 8192
"""Rows of a prefill pass on a GPU, which reads all earlier positions of the cache again."""


def attend(
    qkv: Tensor,
    rope_rows: RopeTable,
    k_cache: Plane,
    v_cache: Plane,
    positions: Tensor,
    span: View,
    heads: int,
    kv_heads: int,
    tree: TreeRows | None = None,
    look: Callable[[Tensor, Plane, Plane], Tensor] | None = None,
) -> Tensor:
    """Append the new keys and values, then attend to the visible positions: [B, T, (N + 2G)·D] → [B, T, N·D].

    A `tree` names the cache rows of the new rows; `span` then holds the positions that the queries of a path see.
    `look` replaces the attention over `span`.
    """
    rows = None if tree is None else tree.rows
    q = rope_append(qkv, *rope_rows, k_cache, v_cache, positions, heads, kv_heads, rows)
    if look is not None:
        return look(q, k_cache, v_cache)
    if tree is None:
        return look_at(q, k_cache, v_cache, span)
    return along_paths(tree, q, k_cache, v_cache, lambda rows: look_at(rows, k_cache, v_cache, span))


def look_at(q: Tensor, k_cache: Plane, v_cache: Plane, span: View) -> Tensor:
    """Attention of q [B, N, T, D] over `span`: [B, T, N·D]."""
    k, v = (read_rows(plane, span.start, span.stop, q.dtype) for plane in (k_cache, v_cache))
    return attention(q, k, v, span.mask, span.causal)


def queries_keys_values(w: LayerWeights, g: TargetGeometry, x: Tensor) -> Tensor:
    """The packed projection [B, T, (N + 2G)·D] of x, normed; queries and keys not rotated yet."""
    qkv = matmul_rows(rms_norm(x, w.input_norm, g.rms_eps), w.qkv)
    return norm_heads(qkv, w.head_norms, g.heads, g.kv_heads, g.rms_eps)


def feed_forward(w: LayerWeights, x: Tensor, eps: float) -> Tensor:
    """down(silu(gate) · up), where gate and up read the normed x."""
    return matmul_rows(silu_mul(matmul_rows(rms_norm(x, w.post_norm, eps), w.gate_up)), w.down)


def mlp(w: LayerWeights, x: Tensor, eps: float) -> Tensor:
    """x plus its `feed_forward`."""
    return x + feed_forward(w, x, eps)


def seen_by(positions: Tensor, window: int | None, tree: TreeRows | None) -> View:
    """Return the positions that rows at `positions` [B, T] see, or with a `tree` the queries of its paths."""
    return view(positions, window) if tree is None else view(tree.at, window, causal=False)


def rope_rows(table: RopeTable, positions: Tensor) -> RopeTable:
    """cos and sin [B, T, 1, D/2] at `positions` [B, T]."""
    cos, sin = table
    return cos[positions].unsqueeze(2), sin[positions].unsqueeze(2)


def target_forward(
    w: TargetWeights,
    geometry: TargetGeometry,
    table: RopeTable,
    cache: KVCache,
    tokens: Tensor,
    positions: Tensor,
    boundaries: Sequence[int],
    tree: TreeRows | None = None,
    look: Look | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run `tokens` [B, T] at `positions` [B, T] and write the cache; with `tree`, they are the rows of a tree. With
    `look`, that is how every layer looks at the cache.

    Returns the last hidden states [B, T, H] before the final norm, and the auxiliary hidden states [B, T,
    len(boundaries)·H], or None without boundaries. Boundary b is the residual stream after b layers (0: the embedding).
    """
    x = w.embed[tokens]
    rows, span, eps = rope_rows(table, positions), seen_by(positions, None, tree), geometry.rms_eps
    streams = {0: x}
    for i, layer in enumerate(w.layers):
        heads, of_layer = (geometry.heads, geometry.kv_heads), partial(look, i) if look else None
        qkv = queries_keys_values(layer, geometry, x)
        mixed = attend(qkv, rows, cache.k[i], cache.v[i], positions, span, *heads, tree, of_layer)
        x = mlp(layer, x + matmul_rows(mixed, layer.o), eps)
        if i + 1 in boundaries:
            streams[i + 1] = x
    return x, feature_capture([streams[b] for b in boundaries]) if boundaries else None


def target_logits(w: Weights, geometry: TargetGeometry, stream: Tensor) -> Tensor:
    """Float32 logits [..., V] of the last hidden states [..., H]."""
    return matmul_rows(rms_norm(stream, w.norm, geometry.rms_eps), w.lm_head).float()


def rope_table(spec: RopeSpec, positions: int, dtype: torch.dtype, device: str) -> RopeTable:
    """cos and sin [positions, D/2] in `dtype`."""
    cos, sin = cos_sin_table(spec, positions, device)
    return cos.to(dtype), sin.to(dtype)


class Weights(Vocabulary, Protocol):
    """Tensors that every target has around its layers: beside its vocabulary, the final `norm` [H]."""

    @property
    def norm(self) -> Tensor: ...


W = TypeVar("W", bound=Weights)


@dataclass(slots=True)
class TorchTarget(ABC, Generic[W]):
    """A target in plain torch as `loop.Target`: its weights, RoPE table and cache."""

    weights: W
    geometry: TargetGeometry
    table: RopeTable
    cache: KVCache
    device: str
    prefill_rows: int = PREFILL_ROWS

    @property
    def embed(self) -> Tensor:
        return self.weights.embed

    @property
    def lm_head(self) -> Tensor:
        return self.weights.lm_head

    @property
    def eos_token_ids(self) -> Sequence[int]:
        return self.geometry.eos_token_ids

    def forward(
        self,
        slots: slice,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `loop.Target.forward`. What `logits` takes are the last hidden states [B, len(rows), H]."""
        cache = self.cache.slots(slots.start, slots.stop)
        stream, features = self.through_layers(cache, tokens, positions, boundaries)
        return stream if rows is None else stream[:, list(rows)], features

    def forward_tree(
        self, slots: slice, tokens: Tensor, positions: Tensor, boundaries: Sequence[int], tree: TreeRows
    ) -> tuple[Tensor, Tensor | None]:
        """As `tree.verifying.VerifiesTrees.forward_tree`."""
        return self.through_layers(self.cache.slots(slots.start, slots.stop), tokens, positions, boundaries, tree)

    def compact(self, read: Tensor, write: Tensor) -> None:
        """As `tree.verifying.VerifiesTrees.compact`."""
        cache = self.cache.slots(0, len(read))
        for plane in (*cache.k, *cache.v):
            move_rows(plane, read, write)

    @abstractmethod
    def through_layers(
        self,
        cache: KVCache,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        tree: TreeRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As `target_forward`."""

    def logits(self, stream: Tensor) -> Tensor:
        """As `target_logits`."""
        return target_logits(self.weights, self.geometry, stream)


class LlamaTarget(TorchTarget[TargetWeights]):
    """A dense target: Llama, Mistral, Qwen3."""

    def through_layers(
        self,
        cache: KVCache,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        tree: TreeRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        return target_forward(self.weights, self.geometry, self.table, cache, tokens, positions, boundaries, tree)

    def forward_looking(
        self, slots: slice, tokens: Tensor, positions: Tensor, boundaries: Sequence[int], look: Look
    ) -> tuple[Tensor, Tensor | None]:
        """As `partial.verifying.LooksElsewhere.forward_looking`."""
        cache = self.cache.slots(slots.start, slots.stop)
        of = (self.weights, self.geometry, self.table, cache)
        return target_forward(*of, tokens, positions, boundaries, look=look)

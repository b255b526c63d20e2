"""The frozen target for training: forward passes over whole sequences of equal length, and greedy continuations.

The arithmetic is the reference engine's, but keys and values are cached only while tokens are generated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.lib.weights import LayerWeights, TargetWeights
from specgate.backends.eagle3.pair_tools.train.unroll import split_and_rotate
from specgate.backends.eagle3.reference.ops import attention, feature_capture, matmul_rows, target_argmax
from specgate.backends.eagle3.reference.target import RopeTable, mlp, queries_keys_values, target_logits
from specgate.checkpoints.geometry import RopeSpec, TargetGeometry

WholeSequenceLayer = Callable[[LayerWeights, TargetGeometry, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def decoder_layer(
    w: LayerWeights, g: TargetGeometry, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over whole sequences x [B, T, H]. Returns the new x, the rotated keys and the values [B, G, T, D]."""
    qkv = queries_keys_values(w, g, x)
    q, k, v = (part.transpose(1, 2) for part in split_and_rotate(qkv, (cos, sin), g.heads, g.kv_heads))
    mixed = attention(q, k, v, None, causal=True)
    return mlp(w, x + matmul_rows(mixed, w.o), g.rms_eps), k, v


@dataclass(frozen=True, slots=True)
class FrozenTarget:
    """A target that is not trained.

    `weights` are in the training dtype. `boundaries` are the auxiliary hidden-state layers. `layer` is `decoder_layer`,
    plain or compiled.
    """

    weights: TargetWeights
    geometry: TargetGeometry
    boundaries: tuple[int, ...]
    layer: WholeSequenceLayer = decoder_layer

    @torch.no_grad()
    def features_and_stream(self, tokens: Tensor, rows: RopeTable) -> tuple[Tensor, Tensor]:
        """The auxiliary hidden states [B, T, n·H] and the last hidden states [B, T, H] of `tokens` [B, T].

        The tokens are at positions 0 … T − 1, and `rows` are RoPE rows of at least T positions.
        """
        streams = {0: self.weights.embed[tokens]}
        x = streams[0]
        for i, layer in enumerate(self.weights.layers):
            x, _, _ = self.layer(layer, self.geometry, x, *upto(rows, tokens.shape[1]))
            if i + 1 in self.boundaries:
                streams[i + 1] = x
        return feature_capture([streams[b] for b in self.boundaries]), x

    @torch.no_grad()
    def continue_greedily(self, prompts: Tensor, new_tokens: int, rows: RopeTable) -> Tensor:
        """`prompts` [B, P] followed by `new_tokens` greedy tokens: [B, P + new_tokens]. An EOS token does not end a
        sequence.
        """
        length = prompts.shape[1]
        out = F.pad(prompts, (0, new_tokens))
        cache: list[tuple[Tensor, Tensor]] = []
        x = self.weights.embed[prompts]
        for layer in self.weights.layers:
            x, k, v = self.layer(layer, self.geometry, x, *upto(rows, length))
            cache.append((with_room(k, new_tokens), with_room(v, new_tokens)))
        out[:, length] = self._greedy(x[:, -1])
        for t in range(length, length + new_tokens - 1):
            x = self.weights.embed[out[:, t]][:, None]
            cos, sin = (part[:, t : t + 1] for part in rows)
            for layer, (k_cache, v_cache) in zip(self.weights.layers, cache, strict=True):
                x = decode_layer(layer, self.geometry, x, cos, sin, k_cache, v_cache, t)
            out[:, t + 1] = self._greedy(x[:, -1])
        return out

    def _greedy(self, stream: Tensor) -> Tensor:
        return target_argmax(target_logits(self.weights, self.geometry, stream))


def decode_layer(
    w: LayerWeights, g: TargetGeometry, x: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor, t: int
) -> Tensor:
    """One layer over one token x [B, 1, H] per sequence, at position `t`. Writes to the caches [B, G, S, D]."""
    qkv = queries_keys_values(w, g, x)
    q, k, v = split_and_rotate(qkv, (cos, sin), g.heads, g.kv_heads)
    k_cache[:, :, t], v_cache[:, :, t] = k[:, 0], v[:, 0]
    # Query heads that share a key head become rows of one attention, so that the cache is read once for all of them.
    grouped = q[:, 0].reshape(len(q), g.kv_heads, -1, g.head_dim)
    mixed = F.scaled_dot_product_attention(grouped, k_cache[:, :, : t + 1], v_cache[:, :, : t + 1])
    return mlp(w, x + matmul_rows(mixed.flatten(1)[:, None], w.o), g.rms_eps)


def with_room(cache: Tensor, rows: int) -> Tensor:
    """`cache` [B, G, T, D] with room for `rows` more positions."""
    return F.pad(cache, (0, 0, 0, rows)).contiguous()


def rope_rows_upto(spec: RopeSpec, length: int, device: torch.device | str) -> RopeTable:
    """cos and sin, float32 [1, length, 1, D/2], of positions 0 … length − 1."""
    cos, sin = cos_sin_table(spec, length, device)
    return cos[None, :, None], sin[None, :, None]


def upto(rows: RopeTable, length: int) -> RopeTable:
    """The RoPE rows of positions 0 … length − 1."""
    return rows[0][:, :length], rows[1][:, :length]

"""The draft's forward pass: project the features, run one decoder layer over `[embedding, hidden]`, pick a token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.weights import DraftWeights
from specgate.backends.eagle3.reference.cache import KVCache, TreeRows
from specgate.backends.eagle3.reference.ops import check_finite, draft_argmax, matmul_rows, rms_norm, target_argmax
from specgate.backends.eagle3.reference.target import RopeTable, attend, feed_forward, rope_rows, seen_by
from specgate.checkpoints.geometry import DraftGeometry


def project_features(w: DraftWeights, geometry: DraftGeometry, features: Tensor) -> Tensor:
    """The target's auxiliary hidden states [B, T, n·H] → the draft's width [B, T, Hd]."""
    if w.concat_norm is not None:
        features = rms_norm(features, w.concat_norm, geometry.rms_eps)
    if w.chunk_norms:
        chunks = features.chunk(geometry.features, dim=-1)
        normed = [rms_norm(c, n, geometry.rms_eps) for c, n in zip(chunks, w.chunk_norms, strict=True)]
        features = torch.cat(normed, dim=-1)
    return matmul_rows(features, w.fc)


def draft_input(w: DraftWeights, geometry: DraftGeometry, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The attention input [norm(embedding), norm(hidden)] [B, T, 2·Hd], and the residual around it [B, T, Hd]."""
    normed = rms_norm(hidden, w.feature_norm, geometry.rms_eps)
    embedded = rms_norm(w.embed[tokens], w.layer.input_norm, geometry.rms_eps)
    return torch.cat((embedded, normed), dim=-1), normed if geometry.norm_before_residual else hidden


class LayerOutput(NamedTuple):
    """Output of the decoder layer, each [B, T, Hd]: the two branches before they are added, and their sum."""

    attn_out: Tensor
    ffn_out: Tensor
    stream: Tensor


def draft_layer(
    w: DraftWeights,
    geometry: DraftGeometry,
    table: RopeTable,
    cache: KVCache,
    tokens: Tensor,
    hidden: Tensor,
    positions: Tensor,
    tree: TreeRows | None = None,
) -> LayerOutput:
    """Run `tokens` [B, T] with `hidden` [B, T, Hd] at `positions` [B, T], and write the cache; with `tree`, they are
    rows of a tree.

    The row at a position combines the *hidden state* of that position with the token one position ahead.
    """
    mixed_input, residual = draft_input(w, geometry, tokens, hidden)
    qkv = matmul_rows(mixed_input, w.layer.qkv)
    span = seen_by(positions, geometry.window, tree)
    rows = rope_rows(table, positions)
    mixed = attend(qkv, rows, cache.k[0], cache.v[0], positions, span, geometry.heads, geometry.kv_heads, tree)
    attn_out = matmul_rows(mixed, w.layer.o)
    middle = residual + attn_out
    ffn_out = feed_forward(w.layer, middle, geometry.rms_eps)
    return LayerOutput(attn_out, ffn_out, middle + ffn_out)


def draft_head(w: DraftWeights, geometry: DraftGeometry, stream: Tensor) -> tuple[Tensor, Tensor]:
    """(the final norm of `stream` [..., Hd], the logits [..., W] that the LM head makes of it)."""
    normed = rms_norm(stream, w.norm, geometry.rms_eps)
    return normed, matmul_rows(normed, w.lm_head)


def draft_token(w: DraftWeights, geometry: DraftGeometry, stream: Tensor) -> tuple[Tensor, Tensor]:
    """(the next draft token [B], the hidden state [B, Hd] that feeds the next draft step), from `stream` [B, Hd]."""
    normed, logits = draft_head(w, geometry, stream)
    check_finite(logits, "the draft's logits")  # else a broken draft would pass for one that is merely bad
    token = draft_argmax(logits, w.target_ids)
    return token, normed if geometry.norm_output else stream


def likeliest_tokens(
    w: DraftWeights, geometry: DraftGeometry, stream: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(the `ranks` likeliest draft tokens [B, F, ranks], the likeliest first; their log-probabilities, float32 [B, F,
    ranks]; the hidden states [B, F, Hd] that feed the next draft step), from `stream` [B, F, Hd].

    Probabilities are over the draft's vocabulary. The lowest entry wins an exact tie, as in `draft_token`.
    """
    normed, logits = draft_head(w, geometry, stream)
    check_finite(logits, "the draft's logits")
    log_probs = logits.float().log_softmax(dim=-1).clamp(max=0.0)  # a child must never be likelier than its parent
    left, entries = logits.clone(), list[Tensor]()
    for _ in range(ranks):
        entries.append(target_argmax(left))
        left.scatter_(-1, entries[-1][..., None], -torch.inf)
    best = torch.stack(entries, dim=-1)
    return w.target_ids[best], log_probs.gather(-1, best), normed if geometry.norm_output else stream

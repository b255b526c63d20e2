"""The arithmetic of the reference engine: one function per kernel of a fast engine, with the kernel's name.

Plain torch, without state except the caches that `rope_append` writes. Shapes: B slots, T query rows per slot, S cached
positions, H hidden size, D head size, N heads, G key/value heads, K draft tokens, V vocabulary, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.reference.kv_planes import Plane, keep_rows, write_rows
from specgate.errors import BackendError

# On a CPU, decode steps use products of exactly PRODUCT_ROWS rows and attention of a multiple of ATTENTION_ROWS, padded
# where there are fewer. Reasons:
# (1) The result of a row then cannot depend on how many rows share the step. So spec-N emits the baseline's tokens bit
# for bit.
# (2) MKL multiplies 16 rows in the time of 4 or less (2,048 x 256 in float32, which caches hold: 0.25 ms and 0.48 ms;
# 49,152 x 576, which they do not: 22 ms and 24 ms), and `linear` is slower for 2 to 16.
# More than FEW_ROWS rows are prefill, where `linear` is faster.
PRODUCT_ROWS = 16
ATTENTION_ROWS = 4
FEW_ROWS = 64


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x · weight / sqrt(mean(x²) + eps), over the last axis; computed in float32, returned in x's dtype."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


def matmul_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ for `x` [..., K] and `weight` [M, K]; returns [..., M]."""
    rows = x.numel() // x.shape[-1]
    if x.device.type != "cpu" or rows > FEW_ROWS:
        return F.linear(x, weight)
    padded = F.pad(x.reshape(rows, -1), (0, 0, 0, -rows % PRODUCT_ROWS))
    products = [torch.mm(weight, group.t()) for group in torch.split(padded, PRODUCT_ROWS)]
    joined = products[0] if len(products) == 1 else torch.cat(products, dim=1)
    # Contiguous, because torch uses other exp and sqrt routines for strided memory than for contiguous memory.
    return joined[:, :rows].t().contiguous().view(*x.shape[:-1], weight.shape[0])


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of the packed [..., 2F] projection; returns [..., F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def norm_heads(qkv: Tensor, norms: Tensor | None, heads: int, kv_heads: int, eps: float) -> Tensor:
    """Packed `qkv` [..., (N + 2G)·D], the queries and keys of every head with their `norms` [2, D]; None: as it is."""
    if norms is None:
        return qkv
    parts = qkv.view(*qkv.shape[:-1], heads + 2 * kv_heads, -1)
    q, k, v = torch.split(parts, [heads, kv_heads, kv_heads], dim=-2)
    # Contiguous, for the reason that `matmul_rows` has.
    normed = [rms_norm(part.contiguous(), weight, eps) for part, weight in zip((q, k), norms, strict=True)]
    return torch.cat((*normed, v), dim=-2).flatten(-2)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [..., D] in the half-split layout. `cos` and `sin` [..., D/2] are already scaled and broadcast over
    heads.
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rope_append(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Plane,
    v_cache: Plane,
    positions: Tensor,
    heads: int,
    kv_heads: int,
    tree_rows: Tensor | None = None,
) -> Tensor:
    """Split and rotate packed `qkv` [B, T, (N + 2G)·D]. Write k and v into the caches [B, G, S, D]; return q [B, N, T,
    D].

    `positions` [B, T] are absolute and address the caches, but those of a tree's rows, which `tree_rows` [B, T] do.
    `cos` and `sin` are [B, T, 1, D/2].
    """
    batch, rows, _ = qkv.shape
    parts = qkv.view(batch, rows, heads + 2 * kv_heads, -1)
    qk = rope(parts[:, :, : heads + kv_heads], cos, sin)
    for plane, of_rows in ((k_cache, qk[:, :, heads:]), (v_cache, parts[:, :, heads + kv_heads :])):
        if tree_rows is None:
            write_rows(plane, positions, of_rows)
        else:
            keep_rows(plane, tree_rows, of_rows)
    return qk[:, :, :heads].transpose(1, 2)


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    visible: Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale)·v for q [B, N, T, D] over caches [B, G, S, D]; returns [B, T, N·D].

    `visible` bool [B, 1, T, S] is true where a row may look. None lets it look everywhere or, with `causal`, at what is
    before: the rows are the last of the S positions. `scale` is 1/√D unless given.
    """
    if visible is not None:
        return masked_attention(q, k_cache, v_cache, visible, scale)
    rows, positions, k, v = q.shape[2], k_cache.shape[2], of_heads(k_cache, q), of_heads(v_cache, q)
    if causal and rows < positions:
        last = lower_right(rows, positions, q.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=last, scale=scale, enable_gqa=not q.is_cuda)
    else:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=not q.is_cuda)
    return out.transpose(1, 2).flatten(2)


def lower_right(rows: int, positions: int, device: torch.device) -> Tensor:
    """A mask with which each of the last `rows` of `positions` looks at what is before it."""
    if device.type != "cuda":
        return torch.ones(rows, positions, dtype=torch.bool, device=device).tril(positions - rows)
    # A CPU has no use for its module, which takes as long to import as torch itself.
    from torch.nn.attention.bias import causal_lower_right

    mask: Tensor = causal_lower_right(rows, positions)
    return mask


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v for q [B, N, T, D] over k and v [B, G, S, D]; returns [B, T, N·D].

    `mask` [B, 1 or N, T, S] is bool, true where a row may look, or is added to the scores. `scale` is 1/√D unless
    given.
    """
    rows = q.shape[2]
    if q.device.type == "cpu" and rows % ATTENTION_ROWS and rows < FEW_ROWS:
        pad = -rows % ATTENTION_ROWS
        q = F.pad(q, (0, 0, 0, pad))
        mask = torch.cat((mask, mask[:, :, -1:].expand(-1, -1, pad, -1)), dim=2)
    k, v = of_heads(k, q), of_heads(v, q)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=not q.is_cuda)
    return out[:, :, :rows].transpose(1, 2).flatten(2)


def of_heads(plane: Tensor, q: Tensor) -> Tensor:
    """Keys or values `plane` [B, G, S, D] as attention takes them: on a GPU once for each of the N heads of `q`.

    Where heads share them, no kernel of torch's takes a mask or float32 on a GPU, and it keeps all scores at once.
    """
    return plane.repeat_interleave(q.shape[1] // plane.shape[1], dim=1) if q.is_cuda else plane


def feature_capture(streams: Sequence[Tensor]) -> Tensor:
    """Concatenate the auxiliary hidden states, each [B, T, H], from low to high layers: [B, T, n·H]."""
    return torch.cat(tuple(streams), dim=-1)


def target_argmax(logits: Tensor) -> Tensor:
    """The greedy token of each row [..., V] → [...]. The lowest id wins an exact tie."""
    best = logits.max(dim=-1, keepdim=True).values
    return (logits == best).int().argmax(dim=-1)


def draft_argmax(logits: Tensor, target_ids: Tensor) -> Tensor:
    """The greedy draft token of each row [..., W], as a target id: target_ids[i] = i + d2t[i]. The lowest id wins a
    tie.
    """
    return target_ids[target_argmax(logits)]


def accept(drafts: Tensor, targets: Tensor) -> Tensor:
    """Accepted draft tokens per slot [B]: the length of the longest prefix of `drafts` [B, K] equal to `targets` [B, K
    + 1].
    """
    return (drafts == targets[:, :-1]).long().cumprod(dim=1).sum(dim=1)


def check_finite(x: Tensor, what: str) -> None:
    """Raise BackendError for NaN and infinity in `x`.

    Without this check, an argmax over NaN would give token 0 in every role, and the tokens of all roles would agree.
    """
    if not torch.isfinite(x).all():
        raise BackendError(
            f"{what} are not finite in {x.dtype}",
            hint="the checkpoint holds NaN or infinity, or overflows in this dtype: try float32",
        )

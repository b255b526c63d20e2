"""Attention over a prompt where heads have sinks, and layers may have windows: in the forms that libraries have for it.

A sink is a logit that takes a share of a head's softmax and has no value. FlashAttention and cuDNN know no sinks, but
they tell the logarithm of each row's sum: what they give is multiplied by the share that is left. Elsewhere a sink
becomes one more key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOWS: Final = 32
"""Windows of queries that attend together by torch: their scores take 270 MB for 64 heads and windows of 128."""


def by_flash(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Causal attention without sinks, [P, N, D], and the logarithm of each row's sum of exponentials, float32 [N, P].
    Each position sees `window` positions at most, itself included, and keys that no row of a block sees are not read.

    q [P, N, D], k and v [P, G, D]. Raises RuntimeError where FlashAttention cannot.
    """
    op: Any = torch.ops.aten._flash_attention_forward.default
    sides = {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
    rows, heads = q.shape[:2]
    q, k, v = (t.unsqueeze(0) for t in (q, k, v))
    results = op(q, k, v, None, None, rows, rows, 0.0, window is None, False, **sides)
    return results[0].squeeze(0), results[1].reshape(heads, rows)


def by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """As `by_flash`, without a window: torch gives cuDNN none. Raises RuntimeError where cuDNN cannot."""
    op: Any = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    results = op(*(t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)), None, True, 0.0, True, False)
    return results[0].squeeze(0).transpose(0, 1), results[1].reshape(q.shape[1], q.shape[0])


def beside_sinks(out: Tensor, sums: Tensor, sinks: Tensor) -> Tensor:
    """`out` [P, N, D] and `sums`, as of `by_flash` → [P, N·D] beside the logits `sinks` [N]; `out` is overwritten."""
    share = (sums.t() - sinks).sigmoid_()  # float32, as sums are
    return out.mul_(share.unsqueeze(-1)).flatten(1)


def by_torch(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
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
    attention = whole_prompt if window is None else sliding_windows
    return attention(wide, keys, values, sink_keys, window or 0, 1 / math.sqrt(q.shape[2]))[..., : q.shape[2]].flatten(
        1
    )


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
    for some in windows_together(count):
        with_sink = torch.cat((keys[some], sink_keys[None, :, None].expand(len(keys[some]), -1, -1, -1)), dim=2)
        mask = visible.expand(len(with_sink), 1, -1, -1).clone()
        if some.start == 0:
            mask[0] = first
        out = F.scaled_dot_product_attention(
            *(query[some], with_sink, F.pad(value[some], (0, 0, 0, 1))), attn_mask=mask, scale=scale, enable_gqa=True
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[: len(q)]


def windows_together(count: int) -> Iterator[slice]:
    return (slice(start, min(start + WINDOWS, count)) for start in range(0, count, WINDOWS))


def last_row(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
    """One query row [1, N, D] that sees the last `window` of k, v [P, G, D], or all, beside `sinks` [N]: [1, N·D].

    In float32, and by products alone: its bits are those of no library's plan.
    """
    if window is not None:
        k, v = k[-window:], v[-window:]
    query = q[0].float().view(k.shape[1], -1, k.shape[2]) / math.sqrt(k.shape[2])  # [G, N / G, D]
    logits = query @ k.float().permute(1, 2, 0)
    beside = torch.cat((logits, sinks.float().view(k.shape[1], -1, 1)), dim=-1).softmax(dim=-1)[..., :-1]
    return (beside @ v.float().transpose(0, 1)).to(q.dtype).view(1, -1)

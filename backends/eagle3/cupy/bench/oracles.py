"""One torch function per kernel, under the kernel's name, in float64 where it computes. Shapes: see the launchers.

Independent of the kernels: written from their definitions, and used by the tests as by the benchmark.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide * weight.double() / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps)


def matmul_rows(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().t()


def swiglu(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = matmul_rows(x, weight).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def rope(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [..., heads, D], cosine and sine [..., D/2]."""
    a, b = x.double().chunk(2, dim=-1)
    cos, sin = cosine.double().unsqueeze(-2), sine.double().unsqueeze(-2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(
    q: Tensor, keys: Tensor, values: Tensor, position: int, window: int | None, sinks: Tensor | None = None
) -> Tensor:
    """One query row [N, D] at `position` over keys, values [G, P, D]; `sinks` [N] are logits that have no value."""
    first = 0 if window is None else max(0, position - window + 1)
    group = q.shape[0] // keys.shape[0]
    k, v = (t[:, first : position + 1].double().repeat_interleave(group, dim=0) for t in (keys, values))
    scores = torch.einsum("nd,npd->np", q.double(), k) / q.shape[-1] ** 0.5
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None]), dim=-1)
    return torch.einsum("np,npd->nd", scores.softmax(-1)[:, : v.shape[1]], v)


def draft_input(embedded: Tensor, hidden: Tensor, embedding_norm: Tensor, feature_norm: Tensor, eps: float) -> Tensor:
    return torch.cat((rms_norm(embedded, embedding_norm, eps), rms_norm(hidden, feature_norm, eps)), dim=-1)


def greedy_choices(logits: Tensor) -> Tensor:
    """Return the choices of `matmul_rows`: the largest of each row, ties to the lowest index."""
    best = logits.max(dim=-1, keepdim=True).values
    return (logits == best).int().argmax(dim=-1)


def accept(drafts: list[int], targets: list[int]) -> int:
    """Length of the longest prefix of drafts that equals targets."""
    agreed = 0
    while agreed < len(drafts) and drafts[agreed] == targets[agreed]:
        agreed += 1
    return agreed


def relative_error(result: Tensor, want: Tensor) -> float:
    """‖found − want‖ / ‖want‖; NaN where anything was not written."""
    return float((result.double() - want.double()).norm() / want.double().norm())


def route(x: Tensor, router: Tensor, bias: Tensor) -> Tensor:
    return matmul_rows(x, router) + bias.double()


def chosen_experts(logits: Tensor, per_token: int) -> tuple[Tensor, Tensor]:
    """(experts of each row, the likeliest first, of equal ones the lowest; the softmax over their logits)."""
    ordered, experts = logits.double().sort(dim=-1, descending=True, stable=True)
    return experts[:, :per_token], ordered[:, :per_token].softmax(-1)


def expert_gate_up(x: Tensor, matrices: Tensor, bias: Tensor, experts: Tensor, alpha: float, limit: float) -> Tensor:
    """[R · k, F] of x [R, H], `matrices` [E, 2F, H] whose rows alternate, gate and up, and `experts` [R, k]."""
    each = x.double().repeat_interleave(experts.shape[1], dim=0)
    both = torch.stack(
        [matrices[e].double() @ row + bias[e].double() for e, row in zip(experts.flatten(), each, strict=True)]
    )
    gate, up = both[:, ::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def expert_down(act: Tensor, matrices: Tensor, bias: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """[R, H] of act [R · k, F], `matrices` [E, H, F], `experts` and `weights` [R, k]."""
    parts = torch.stack(
        [matrices[e].double() @ a.double() + bias[e].double() for e, a in zip(experts.flatten(), act, strict=True)]
    )
    return (parts * weights.double().flatten()[:, None]).view(*experts.shape, -1).sum(1)

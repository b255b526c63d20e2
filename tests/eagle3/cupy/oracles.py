"""One torch function per kernel, under the kernel's name, in float64 where it computes. Shapes: see the launchers.

Independent of the kernels: written from their definitions, and for the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.oracles import chosen_experts as chosen_experts
from specgate.backends.eagle3.cupy.bench.oracles import expert_down as expert_down
from specgate.backends.eagle3.cupy.bench.oracles import expert_gate_up as expert_gate_up
from specgate.backends.eagle3.cupy.bench.oracles import relative_error as relative_error


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


def route(x: Tensor, router: Tensor, bias: Tensor) -> Tensor:
    return matmul_rows(x, router) + bias.double()

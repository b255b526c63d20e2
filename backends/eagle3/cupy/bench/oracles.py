"""The products of a mixture of experts in float64, as torch computes them from their definition.

Independent of the kernels: the search compares configurations with them, and tests the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(result: Tensor, want: Tensor) -> float:
    """‖found − want‖ / ‖want‖; NaN where anything was not written."""
    return float((result.double() - want.double()).norm() / want.double().norm())


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

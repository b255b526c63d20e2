"""Acceptance rate of one draft token for each way of verifying, from the target's distribution p and the draft's q.

All take p and q float64 [V] over the target's vocabulary and return a probability.
"""

from __future__ import annotations

import numpy as np

from specgate.sampling.keys import Floats


def by_rejection(p: Floats, q: Floats) -> float:
    """Σ min(p, q), which is 1 − the total variation distance of p and q: the most that any way can have."""
    return float(np.minimum(p, q).sum())


def coupled(p: Floats, q: Floats) -> float:
    """The chance that one race gives both the same token: Σᵢ 1 / Σⱼ max(pⱼ / pᵢ, qⱼ / qᵢ).

    With D the total variation distance it is at least (1 − D) / (1 + D) and at most 1 − D. Sorted by q / p, the inner
    sum is one of p before the token and one of q behind it, so that this takes V log V steps.
    """
    either = (p > 0) | (q > 0)
    p, q = p[either], q[either]
    with np.errstate(divide="ignore"):
        ratio = q / p
    order = np.argsort(ratio, kind="stable")
    p, q, ratio = p[order], q[order], ratio[order]
    until = np.cumsum(p)
    beyond = np.cumsum(q[::-1])[::-1] - q
    both = (p > 0) & (q > 0)
    return float((1 / (until[both] / p[both] + beyond[both] / q[both])).sum())


def of_a_greedy_draft(p: Floats, q: Floats) -> float:
    """p of the draft's likeliest token: what either way accepts where the draft does not draw, but takes its best."""
    return float(p[np.argmax(q)])

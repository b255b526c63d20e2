"""Acceptance length ↔ share of accepted draft tokens, where each is accepted with the same probability.

In a planted pair the target emits the planted successor with probability p, whatever came before. The draft proposes it
with probability 1 − f. So each draft token that is reached is accepted with probability s = p · (1 − f).
"""

from __future__ import annotations

from scipy.optimize import brentq


def acceptance_length(share: float, k: int) -> float:
    """1 + s + s² + … + s^K: the expected tokens per cycle of a chain of K draft tokens, bonus token included."""
    return float(sum(share**i for i in range(k + 1)))


def share_for(length: float, k: int) -> float:
    """The share s with acceptance_length(s, k) = length. Raises ValueError unless 1 ≤ length ≤ k + 1."""
    if not 1 <= length <= k + 1:
        raise ValueError(f"a chain of {k} drafts gives acceptance lengths from 1 to {k + 1}, not {length:g}")
    return float(brentq(lambda share: acceptance_length(share, k) - length, 0.0, 1.0))

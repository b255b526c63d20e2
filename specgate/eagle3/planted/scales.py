"""How large things are in a planted target, and what that makes of its residual stream."""

from __future__ import annotations

import math
from typing import Final

from specgate.eagle3.geometry import TargetGeometry

SCORE: Final = 4.0
"""Standard deviation of attention scores before the softmax."""
ATTENTION: Final = 0.5
MLP: Final = 1.0
"""Gains of the two branches of a layer relative to each other."""
BRANCHES: Final = 2.5
"""Norm of all branches together over the norm of the embedding, were attention to keep the norm of the values."""
AVERAGED: Final = 0.5
"""About the share of the values' energy that is left when attention has averaged them."""
SILU_SQUARE: Final = 0.356
"""Mean of silu(z)² for normal z."""
LOGIT_STD: Final = 3.0
"""R: standard deviation of the logits of tokens that are not planted."""


def branch_scale(layers: int) -> float:
    """s: what makes the branches of all layers add up to `BRANCHES` times the embedding."""
    return BRANCHES / math.sqrt(layers * (ATTENTION**2 + MLP**2))


def stream_rms(g: TargetGeometry, layers: float) -> float:
    """About the root mean square of the residual stream after so many layers; x.5: between the branches of one."""
    whole, half = int(layers), layers % 1 > 0
    attention = AVERAGED * ATTENTION**2
    return math.sqrt(1 + branch_scale(g.layers) ** 2 * (whole * (attention + MLP**2) + half * attention))

"""Magnitudes in a planted target, and the size of the residual stream that follows from them."""

from __future__ import annotations

import math
from typing import Final

from specgate.checkpoints.geometry import TargetGeometry

SCORE: Final = 4.0
"""Standard deviation of attention scores before the softmax."""
ATTENTION: Final = 0.5
MLP: Final = 1.0
"""Gains of a layer's two branches relative to each other."""
BRANCHES: Final = 2.5
"""Norm of all branches together over the norm of the embedding, if attention kept the norm of the values."""
AVERAGED: Final = 0.5
"""About the share of the values' energy that is left after attention has averaged them."""
SILU_SQUARE: Final = 0.356
"""Mean of silu(z)² for normal z."""
LOGIT_STD: Final = 3.0
"""R: standard deviation of the logits of tokens that are not planted."""


def branch_scale(layers: int) -> float:
    """s: the scale at which the branches of all layers add up to `BRANCHES` times the embedding."""
    return BRANCHES / math.sqrt(layers * (ATTENTION**2 + MLP**2))


def stream_rms(g: TargetGeometry, layers: float) -> float:
    """About the root mean square of the residual stream after `layers` layers; x.5 means between a layer's two
    branches.
    """
    whole, half = int(layers), layers % 1 > 0
    attention = AVERAGED * ATTENTION**2
    return math.sqrt(1 + branch_scale(g.layers) ** 2 * (whole * (attention + MLP**2) + half * attention))

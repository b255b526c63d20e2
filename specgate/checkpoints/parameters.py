"""The harness's own count of the weights that a decode step must read, from nothing but the target's config."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.errors import CheckpointError

LEAST_BITS: Final = 4
"""Bits per weight, at least. No engine that decodes such pairs in production stores its matrices in fewer."""


def least_weight_bytes(folder: Path, gpus: int = 1) -> int | None:
    """The least bytes of weights that a pass of the target in `folder` reads, whatever the engine: every matrix once,
    at `LEAST_BITS` per weight. Of `gpus` GPUs that share it, that is what each reads. None where the config is not one
    that specgate reads.
    """
    try:
        return matrix_parameters(target_geometry(read_config(folder))) * LEAST_BITS // 8 // gpus
    except (CheckpointError, OSError):
        return None


def matrix_parameters(g: TargetGeometry) -> int:
    """Parameters of the matrices that every pass multiplies with: the layers' projections and the LM head.

    The embedding is not among them: a pass reads a row per token. Of experts, it needs those of one token at least.
    """
    attention = g.hidden * g.head_dim * (g.heads + 2 * g.kv_heads) + g.heads * g.head_dim * g.hidden
    experts = g.experts.per_token if g.experts else 1
    return g.layers * (attention + experts * 3 * g.hidden * g.intermediate) + g.vocab * g.hidden

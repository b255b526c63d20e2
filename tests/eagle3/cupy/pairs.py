"""Pairs to test the engine with: of any geometry without weights, and small random ones with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.shard import WHOLE, Shard
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.heads.tensors import Wanted, draft_tensors

ROPE = RopeSpec("default", 10000.0, 64)
TARGET = TargetGeometry(
    layers=3,
    hidden=64,
    intermediate=96,
    heads=3,
    kv_heads=1,
    head_dim=64,
    vocab=320,
    rms_eps=1e-5,
    rope=ROPE,
    max_positions=512,
    tied_embeddings=False,
    eos_token_ids=(7,),
    bos_token_id=None,
)
DRAFT = DraftGeometry(
    hidden=128,
    target_hidden=64,
    features=3,
    intermediate=96,
    heads=2,
    kv_heads=2,
    head_dim=64,
    vocab=320,
    draft_vocab=96,
    rms_eps=1e-5,
    rope=ROPE,
    max_positions=512,
    own_embedding=True,
)
BOUNDARIES = (0, 2, 3)
WINDOW = 20
MIXTURE = replace(
    TARGET,
    heads=8,
    kv_heads=2,
    rope=RopeSpec("yarn", 150000.0, 64, factor=32.0, original_positions=16, truncate=False),
    experts=ExpertGeometry(8, 2, mxfp4=True),
    windows=(WINDOW, None, WINDOW),
    biases=True,
    sinks=True,
)
"""A target with everything that gpt-oss has."""


def target_checkpoint(geometry: TargetGeometry, tensors: dict[str, Tensor]) -> TargetCheckpoint:
    return TargetCheckpoint(geometry, tensors, "", Path("config.json"))


def draft_checkpoint(
    geometry: DraftGeometry, tensors: dict[str, Tensor], boundaries: tuple[int, ...]
) -> DraftCheckpoint:
    d2t = torch.arange(geometry.draft_vocab) * 2 if geometry.draft_vocab != geometry.vocab else None
    return DraftCheckpoint(geometry, tensors, d2t, AuxiliaryLayers(boundaries, "test"), "", ())


def draft_weights(geometry: DraftGeometry) -> dict[str, Wanted]:
    return {name: want for name, want in draft_tensors(geometry, False, False).items() if name != "d2t"}


@cache
def without_weights(
    target: TargetGeometry, draft: DraftGeometry, boundaries: tuple[int, ...], positions: int
) -> tuple[Target, Draft]:
    """A pair of any size on the `meta` device, which holds shapes alone."""
    model, head = random_pair(Geometry(target, draft, boundaries), positions, "meta")
    assert head is not None
    return model, head


def parts_without_weights(
    pair: PairGeometry, positions: int, shard: Shard, of_draft: Shard = WHOLE
) -> tuple[Target, Draft]:
    """The parts of a pair that a GPU has of the target, and of the draft. The draft's vocabulary map is whole."""
    whole = without_weights(pair.target, pair.draft, pair.boundaries, positions)[1]
    target, draft = without_weights(
        *(shard.geometry(pair.target), of_draft.of_draft(pair.draft), pair.boundaries, positions)
    )
    return replace(target, shard=shard), replace(draft, shard=of_draft, target_ids=whole.target_ids)


def random_weights(wanted: Mapping[str, Wanted], seed: int) -> dict[str, Tensor]:
    """Bfloat16, on the CPU. Matrices are small, so that a rounding error does not grow from layer to layer. Those in
    MXFP4 have random bits.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(name: str, want: Wanted) -> Tensor:
        if want.dtype == "U8":
            low, high = (121, 124) if name.endswith("_scales") else (0, 256)
            return torch.randint(low, high, want.shape, generator=generator, dtype=torch.uint8)
        noise = torch.randn(want.shape, generator=generator)
        return (1 + 0.1 * noise if noise.dim() == 1 else 0.1 * noise).bfloat16()

    return {name: random(name, want) for name, want in wanted.items()}

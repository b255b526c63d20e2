from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.lib.hf_write import draft_config, target_config
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import Keys

LLAMA3 = RopeSpec(
    "llama3", 500000.0, 16, factor=8.0, original_positions=8192, low_freq_factor=1.0, high_freq_factor=4.0
)
YARN = RopeSpec("yarn", 10000.0, 16, factor=4.0, original_positions=512, attention_factor=1.2, truncate=False)
ROPES = [RopeSpec("default", 10000.0, 16), RopeSpec("linear", 10000.0, 16, factor=2.0), LLAMA3, YARN]
TARGET = TargetGeometry(6, 64, 128, 4, 2, 16, 320, 1e-5, ROPES[0], 4096, False, (7,), 5)
DRAFT = DraftGeometry(
    hidden=64,
    target_hidden=64,
    features=3,
    intermediate=96,
    heads=8,
    kv_heads=4,
    head_dim=16,
    vocab=320,
    draft_vocab=96,
    rms_eps=1e-6,
    rope=ROPES[0],
    max_positions=2048,
)


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r.kind)
@pytest.mark.parametrize(
    "target", [TARGET, replace(TARGET, tied_embeddings=True), replace(TARGET, eos_token_ids=(), bos_token_id=None)]
)
def test_a_target_geometry_survives_its_config(rope: RopeSpec, target: TargetGeometry) -> None:
    geometry = replace(target, rope=rope)
    assert target_geometry(Keys(Path("config.json"), target_config(geometry, "bfloat16"))) == geometry


@pytest.mark.parametrize("name", EXPERT_GEOMETRIES)
@pytest.mark.parametrize("mxfp4", [True, False])
def test_a_target_with_experts_survives_its_config(name: str, mxfp4: bool) -> None:
    g = EXPERT_GEOMETRIES[name]().target
    assert g.experts is not None
    geometry = replace(g, experts=replace(g.experts, mxfp4=mxfp4))
    assert target_geometry(Keys(Path("config.json"), target_config(geometry, "bfloat16"))) == geometry


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r.kind)
@pytest.mark.parametrize("window", [None, 256])
def test_a_draft_geometry_and_its_boundaries_survive_their_config(rope: RopeSpec, window: int | None) -> None:
    geometry = replace(DRAFT, rope=rope, window=window)
    keys = Keys(Path("config.json"), draft_config(geometry, (1, 3, 5), "bfloat16"))
    read, capture = draft_geometry(keys, TARGET, {"lm_head.weight"})
    assert (read, capture.boundaries) == (geometry, (1, 3, 5))


@pytest.mark.parametrize(
    "draft",
    [
        replace(DRAFT, fc_norm=True),
        replace(DRAFT, norm_before_fc=True),
        replace(DRAFT, norm_output=True),
        replace(DRAFT, norm_before_residual=True),
        replace(DRAFT, features=4),
        replace(DRAFT, target_hidden=128),
    ],
)
def test_what_newer_drafts_do_otherwise_survives_its_config(draft: DraftGeometry) -> None:
    boundaries = tuple(range(1, draft.features + 1))
    target = replace(TARGET, hidden=draft.target_hidden)
    read, _ = draft_geometry(
        Keys(Path("config.json"), draft_config(draft, boundaries, "bfloat16")), target, {"lm_head.weight"}
    )
    assert read == replace(draft, own_embedding=draft.hidden != draft.target_hidden)

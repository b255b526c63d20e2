from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.backends.eagle3.hf_draft import draft_geometry
from specgate.backends.eagle3.hf_keys import Keys
from specgate.backends.eagle3.hf_target import target_geometry
from specgate.backends.eagle3.hf_write import draft_config, rope_keys, target_config

LLAMA3 = RopeSpec(
    "llama3", 500000.0, 16, factor=8.0, original_positions=8192, low_freq_factor=1.0, high_freq_factor=4.0
)
ROPES = [RopeSpec("default", 10000.0, 16), RopeSpec("linear", 10000.0, 16, factor=2.0), LLAMA3]
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
    ],
)
def test_a_switch_that_the_layout_cannot_say_is_refused(draft: DraftGeometry) -> None:
    with pytest.raises(ValueError, match="the common layout has none"):
        draft_config(draft, (1, 3, 5), "bfloat16")


def test_yarn_is_not_written() -> None:
    with pytest.raises(ValueError, match="YaRN"):
        rope_keys(RopeSpec("yarn", 10000.0, 16, factor=4.0))

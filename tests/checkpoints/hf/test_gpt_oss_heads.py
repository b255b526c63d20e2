"""EAGLE-3 heads of gpt-oss in the layouts in which they are published, on a target of its shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specgate.checkpoints.auxiliary_layers import IDS
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.heads.tensors import draft_tensors
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import Keys, read_config
from specgate.errors import CheckpointError
from tests.checkpoints.gpt_oss_folders import config_of

LAYERS = 36
SIZES: Mapping[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 384,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # not hidden / heads, as in the published ones
    "vocab_size": 320,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}
FLAT: Mapping[str, object] = {**SIZES, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100}
YARN: Mapping[str, object] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def target(tmp_path: Path) -> TargetGeometry:
    config = config_of(num_hidden_layers=LAYERS)
    config.architectures = ["GptOssForCausalLM"]
    config.save_pretrained(tmp_path)
    return target_geometry(read_config(tmp_path))


def keys(values: Mapping[str, Any]) -> Keys:
    return Keys(Path("head/config.json"), values)


@pytest.mark.parametrize(
    ("layout", "config", "boundaries"),
    [
        ("SpecForge", {**FLAT, "eagle_config": {IDS: [1, 17, 33]}}, (2, 18, 34)),
        (
            "NVIDIA, long context",
            {
                **FLAT,
                "max_position_embeddings": 131072,
                "rope_theta": 150000,
                "rope_scaling": YARN,
                "eagle_config": {IDS: [1, 17, 32], "use_aux_hidden_state": True},
            },
            (2, 18, 33),
        ),
        ("NVIDIA, v3", {**FLAT, "norm_before_fc": True, "eagle_config": {IDS: [24, 30, 36]}}, (24, 30, 36)),
        (
            "RedHat, speculators",
            {
                "speculators_model_type": "eagle3",
                "architectures": ["Eagle3Speculator"],
                "transformer_layer_config": SIZES,
                "draft_vocab_size": 100,
                "norm_before_residual": True,
                "norm_before_fc": True,
                IDS: [2, 18, 33],
            },
            (2, 18, 33),
        ),
    ],
)
def test_a_published_heads_config_is_read(
    target: TargetGeometry, layout: str, config: Mapping[str, Any], boundaries: tuple[int, ...]
) -> None:
    draft, capture = draft_geometry(keys(config), target, ("lm_head.weight", "d2t"))
    assert capture.boundaries == boundaries, layout
    assert (draft.target_hidden, draft.features, draft.head_dim) == (target.hidden, 3, 32)
    tensors = draft_tensors(draft, True, True)
    assert tensors["fc.weight"].shape == (64, 3 * 64)
    assert ("input_norm.weight" in tensors) == bool(config.get("norm_before_fc"))
    if "rope_scaling" in config:
        assert draft.rope == target.rope.__class__("yarn", 150000.0, 32, 32.0, 4096, truncate=False)


def test_a_head_that_reads_the_last_hidden_state_alone_is_refused_by_name(target: TargetGeometry) -> None:
    config = {**FLAT, "eagle_config": {"use_aux_hidden_state": False}}
    with pytest.raises(CheckpointError, match="use_aux_hidden_state = false"):
        draft_geometry(keys(config), target, ("lm_head.weight", "d2t"))

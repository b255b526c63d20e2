"""Frequencies and tables against transformers' own, bit for bit, through the same config."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specgate.backends.eagle3.lib.rope import cos_sin_table, inverse_frequencies
from specgate.checkpoints.hf.rope import rope_of
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import Keys
from specgate.errors import CheckpointError
from tests.checkpoints.folders import LLAMA, keys

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: list[dict[str, object]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "type": "mrope", "mrope_section": [8, 12, 12]},
    {"rope_type": "linear", "factor": 3.0},
    {**LLAMA3, "original_max_position_embeddings": 2048},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 1.2},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0},
    {"type": "yarn", "factor": 4.0},
]


def config(spelling: str, scaling: dict[str, object], base: float) -> Keys:
    positions: object = 16384
    if spelling == "rope_parameters":
        return keys(LLAMA, max_position_embeddings=positions, rope_parameters={**scaling, "rope_theta": base})
    return keys(LLAMA, max_position_embeddings=positions, rope_scaling=scaling, rope_theta=base)


def transformers_rope(values: Keys, head_dim: int) -> LlamaRotaryEmbedding:
    copied = {k: dict(v) if isinstance(v, dict) else v for k, v in values.values.items()}
    return LlamaRotaryEmbedding(LlamaConfig(**copied, head_dim=head_dim))


@pytest.mark.parametrize("base", [10000.0, 150000.0])
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: " ".join(map(str, s.values())))
def test_frequencies_and_tables_are_those_of_transformers(
    scaling: dict[str, object], spelling: str, base: float
) -> None:
    values = config(spelling, scaling, base)
    spec, _ = rope_of(values, 64)
    theirs = transformers_rope(values, 64)
    frequencies, scale = inverse_frequencies(spec)
    assert torch.equal(frequencies, theirs.inv_freq)
    assert scale == pytest.approx(theirs.attention_scaling, abs=0)
    cos, sin = cos_sin_table(spec, 300)
    their_cos, their_sin = theirs(torch.zeros(1), torch.arange(300)[None])
    assert torch.equal(cos, their_cos[0, :, :32])
    assert torch.equal(sin, their_sin[0, :, :32])
    assert cos.dtype == torch.float32 and cos.shape == (300, 32)


def test_a_config_without_rope_keys_means_base_10000() -> None:
    spec, positions = rope_of(keys(LLAMA), 16)
    assert (spec.kind, spec.base, positions) == ("default", 10000.0, 2048)


def test_yarn_states_its_positions_before_or_after_scaling() -> None:
    before = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert rope_of(keys(LLAMA, rope_scaling=before), 16)[1] == 8192
    assert rope_of(keys(LLAMA, rope_scaling=before, max_position_embeddings=8192), 16)[1] == 8192


def test_yarn_without_a_factor_uses_the_ratio_of_positions() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 512}
    assert rope_of(keys(LLAMA, rope_scaling=scaling), 16)[0].factor == 4.0


def test_an_override_keeps_base_and_multiplies_the_original_positions() -> None:
    config = keys(LLAMA, rope_theta=100000.0, max_position_embeddings=8192)
    geometry = target_geometry(config, {"rope_type": "yarn", "factor": 4.0})
    assert geometry.max_positions == 32768
    assert (geometry.rope.kind, geometry.rope.base, geometry.rope.original_positions) == ("yarn", 100000.0, 8192)


def test_an_override_of_a_scaled_config_starts_from_its_original_positions() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    scaled = keys(LLAMA, max_position_embeddings=8192, rope_scaling=scaling)
    assert target_geometry(scaled, {"rope_type": "yarn", "factor": 8.0}).max_positions == 16384
    assert target_geometry(scaled, {"rope_type": "default"}).max_positions == 2048


def test_an_override_may_name_its_own_original_positions() -> None:
    override: dict[str, float | str] = {"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 1024}
    assert target_geometry(keys(LLAMA), override).max_positions == 2048


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rope_type": "longrope", "factor": 4.0}, r'\.rope_type = "longrope"\n.*default, linear, llama3, yarn'),
        ({"rope_type": "yarn", "facto": 4.0}, r"rope_scaling\.facto = 4\.0\n.*beta_fast"),
        ({"rope_type": "linear", "factor": 0.5}, r"rope_scaling\.factor = 0\.5\n.*≥ 1"),
        ({"rope_type": "linear"}, r"rope_scaling\.factor is missing"),
        ({"rope_type": "default", "factor": 2.0}, r"rope_scaling\.factor = 2\.0\n.*no further keys"),
        (LLAMA3 | {"low_freq_factor": 4.0}, r"high_freq_factor = 4\.0\n.*larger than low_freq_factor = 4"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0}, r"beta_fast = 1\.0\n.*larger than beta_slow = 1"),
        ({"rope_type": "yarn", "factor": "4"}, r'factor = "4"\n.*number'),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5\n.*whole head"),
    ],
)
def test_a_scaling_that_cannot_be_meant_is_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rope_of(keys(LLAMA, rope_scaling=section), 16)


def test_two_scalings_that_differ_are_refused() -> None:
    with pytest.raises(CheckpointError, match="keep one of the two"):
        rope_of(keys(LLAMA, rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"type": "yarn"}), 16)


def test_an_override_is_named_as_such_in_its_error() -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: rope override\.factor is missing"):
        target_geometry(keys(LLAMA), {"rope_type": "yarn"})

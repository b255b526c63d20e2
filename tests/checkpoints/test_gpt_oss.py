"""gpt-oss checkpoints: read as transformers writes them; refused with file, key or tensor, and what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import load_target
from specgate.backends.eagle3.lib.rope import inverse_frequencies
from specgate.backends.eagle3.lib.traffic import target_traffic
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.parameters import least_weight_bytes
from specgate.errors import CheckpointError
from tests.checkpoints.folders import Tensors, edit_config, edit_tensors
from tests.checkpoints.gpt_oss_folders import WINDOW, config_of, write_gpt_oss, write_quantised

BIG: dict[str, Any] = {
    "num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4, "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072,
    "eos_token_id": 200002, "bos_token_id": 199998, "pad_token_id": 199999,
}  # fmt: skip
"""gpt-oss-120b, as published."""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write_gpt_oss(tmp_path / "target", seed=1)


@pytest.fixture
def quantised(tmp_path: Path, written: Path) -> Path:
    return write_quantised(tmp_path / "mxfp4", written)


def geometry_of(folder: Path, **changes: Any) -> TargetGeometry:
    config = config_of(**changes)
    config.architectures = ["GptOssForCausalLM"]
    config.save_pretrained(folder)
    return target_geometry(read_config(folder))


def test_sizes_are_those_that_transformers_wrote(tmp_path: Path) -> None:
    g, config = geometry_of(tmp_path), config_of()
    assert (g.layers, g.hidden, g.intermediate, g.vocab) == (4, 64, 96, 320)
    assert (g.heads, g.kv_heads, g.head_dim) == (4, 2, 16)
    assert g.experts is not None and (g.experts.count, g.experts.per_token, g.experts.mxfp4) == (6, 2, False)
    assert (g.experts.alpha, g.experts.limit) == (config.swiglu_alpha, config.swiglu_limit)
    assert g.windows == (WINDOW, None, WINDOW, None) and g.biases and g.sinks
    assert not g.tied_embeddings and g.eos_token_ids == (257,)


def test_the_rotation_is_that_of_transformers_without_truncation(tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    g = geometry_of(tmp_path)
    expected, scale = ROPE_INIT_FUNCTIONS["yarn"](config_of(), "cpu")
    frequencies, factor = inverse_frequencies(g.rope)
    assert torch.equal(frequencies, expected) and factor == pytest.approx(scale) == pytest.approx(1.3466, abs=1e-4)


def test_the_published_configs_older_spelling_is_read(tmp_path: Path) -> None:
    config = json.loads((write_gpt_oss(tmp_path, seed=1) / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"], config["experts_per_token"] = rope, config.pop("num_experts_per_tok")
    del config["layer_types"]
    before = target_geometry(read_config(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert target_geometry(read_config(tmp_path)) == before


def test_a_step_of_the_120b_reads_what_arithmetic_says(tmp_path: Path) -> None:
    """By hand, from its sizes: 5.0 GB for one token, 1.9 GB of it experts in MXFP4; 15 experts for four tokens."""
    config = config_of(**BIG)
    config.architectures = ["GptOssForCausalLM"]
    config.save_pretrained(tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "mxfp4"})
    traffic = target_traffic(target_geometry(read_config(tmp_path)), torch.bfloat16)
    experts = traffic.experts
    assert experts is not None
    one = 2 * 2880 * 2880 * 17 / 32 + 2880 * 2880 * 17 / 32 + 2 * 3 * 2880  # four bits, a scale per 32, biases
    assert experts.expert_bytes == one == pytest.approx(13.24e6, rel=1e-3)
    assert 36 * 4 * one == pytest.approx(1.906e9, rel=1e-3)
    assert traffic.weight_bytes + 36 * 4 * one == pytest.approx(5.0e9, rel=0.01)
    assert experts.distinct(4) == pytest.approx(15.27, abs=0.01)
    assert [(a.layers, a.window) for a in traffic.attention] == [(18, 128), (18, None)]
    least = least_weight_bytes(tmp_path)
    assert least is not None and least < traffic.weight_bytes + 36 * 4 * one


def test_experts_in_mxfp4_stay_packed_and_all_else_has_the_dtype_asked_for(quantised: Path) -> None:
    loaded = load_target(quantised, torch.bfloat16, "cpu")
    assert loaded.geometry.experts is not None and loaded.geometry.experts.mxfp4
    packed = {name for name, tensor in loaded.tensors.items() if tensor.dtype == torch.uint8}
    assert len(packed) == 4 * 2 * 2 and all(name.endswith(("_blocks", "_scales")) for name in packed)
    assert {t.dtype for name, t in loaded.tensors.items() if name not in packed} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, r"quantization_config.quant_method = .awq."),
        ({"quantization_config": {"quant_method": "mxfp4"}, "hidden_size": 72}, "hidden_size = 72.*blocks of 32"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok = 7.*at most num_local_experts = 6"),
        ({"num_local_experts": ...}, "num_local_experts is missing"),
        ({"layer_types": ["full_attention"]}, "layer_types.*num_hidden_layers = 4"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types.*sliding_attention"),
        ({"sliding_window": ...}, "sliding_window is missing"),
        ({"attention_bias": False}, "attention_bias = false"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = true"),
        ({"model_type": "llama"}, "model_type = .llama."),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30"),
        ({"swiglu_limit": -1}, "swiglu_limit = -1"),
    ],
)
def test_an_odd_config_is_refused(written: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(written, **changes)
    with pytest.raises(CheckpointError) as caught:
        target_geometry(read_config(written))
    text = str(caught.value).replace("\n", " ")
    assert re.search(message, text), text


def change(name: str, edit: Callable[[Tensor], Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: edit(tensors[name]).contiguous()})


LAYER = "model.layers.1."
EXPERTS = f"{LAYER}mlp.experts."


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(f"{EXPERTS}gate_up_proj_scales", lambda t: t[:, :, :1]), "gate_up_proj_scales is .6, 192, 1., not"),
        (change(f"{EXPERTS}down_proj_blocks", lambda t: t[:5]), "down_proj_blocks is .5, 64, 3, 16., not .6,"),
        (change(f"{EXPERTS}down_proj_blocks", lambda t: t.float()), "down_proj_blocks is of type F32, not U8"),
        (lambda tensors: tensors.pop(f"{EXPERTS}down_proj_blocks"), "missing: .*down_proj_blocks"),
        (change(f"{LAYER}self_attn.sinks", lambda t: t[:3]), "sinks is .3., not .4."),
        (change(f"{LAYER}mlp.router.weight", lambda t: t * torch.nan), "mlp.router.weight is not finite"),
        (change(f"{LAYER}self_attn.sinks", lambda t: t * torch.inf), "sinks is not finite"),
        (change(f"{EXPERTS}down_proj_scales", lambda t: t.fill_(255)), "down_proj_scales has a scale of 255"),
    ],
)
def test_odd_tensors_are_refused(quantised: Path, edit: Callable[[Tensors], object], message: str) -> None:
    edit_tensors(quantised, edit)
    with pytest.raises(CheckpointError, match=message):
        load_target(quantised, torch.float32, "cpu")

"""Target configs: read as transformers reads them, refused with file, key, value and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig, Qwen3Config

from specgate.checkpoints.hf.target import target_geometry, with_generation_eos
from specgate.checkpoints.hf_keys import read_config
from specgate.errors import CheckpointError
from tests.checkpoints.folders import LLAMA, keys


@pytest.mark.parametrize(
    "written",
    [
        LlamaConfig(),
        LlamaConfig(hidden_size=512, num_attention_heads=8, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5),
        LlamaConfig(tie_word_embeddings=True, bos_token_id=None, eos_token_id=[5, 7]),
        LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        Qwen3Config(hidden_size=512, num_attention_heads=8, num_key_value_heads=2, eos_token_id=7),
    ],
)
def test_sizes_are_those_that_transformers_wrote(tmp_path: Path, written: LlamaConfig | Qwen3Config) -> None:
    norms = isinstance(written, Qwen3Config)
    written.architectures = ["Qwen3ForCausalLM" if norms else "LlamaForCausalLM"]
    written.save_pretrained(tmp_path)
    geometry = target_geometry(read_config(tmp_path))
    assert geometry.head_norms is norms
    assert geometry.layers == written.num_hidden_layers
    assert geometry.hidden == written.hidden_size
    assert geometry.intermediate == written.intermediate_size
    assert geometry.heads == written.num_attention_heads
    assert geometry.kv_heads == written.num_key_value_heads
    assert geometry.head_dim == written.head_dim == geometry.rope.dim
    assert geometry.vocab == written.vocab_size
    assert geometry.rms_eps == written.rms_norm_eps
    assert geometry.rope.base == written.rope_parameters["rope_theta"]
    assert geometry.max_positions == written.max_position_embeddings
    assert geometry.tied_embeddings == written.tie_word_embeddings
    ids = written.eos_token_id
    assert list(geometry.eos_token_ids) == (ids if isinstance(ids, list) else [ids])
    assert geometry.bos_token_id == written.bos_token_id


def test_head_dim_and_kv_heads_have_the_defaults_of_llama() -> None:
    geometry = target_geometry(keys(LLAMA, num_key_value_heads=...))
    assert (geometry.kv_heads, geometry.head_dim) == (4, 16)
    assert target_geometry(keys(LLAMA, architectures=["Qwen3ForCausalLM"])).head_dim == 128  # as in `Qwen3Config`


def test_a_missing_eos_is_no_eos() -> None:
    assert target_geometry(keys(LLAMA, eos_token_id=...)).eos_token_ids == ()


def test_mistral_without_a_window_is_a_llama() -> None:
    assert target_geometry(keys(LLAMA, architectures=["MistralForCausalLM"], sliding_window=None)).layers == 32


def test_the_generation_config_adds_its_end_of_sequence_ids() -> None:
    geometry = target_geometry(keys(LLAMA, eos_token_id=2))
    assert with_generation_eos(geometry, keys({}, eos_token_id=[9, 2])).eos_token_ids == (2, 9)
    with pytest.raises(CheckpointError, match=r"eos_token_id = 1000\n.*vocabulary of 1000"):
        with_generation_eos(geometry, keys({}, eos_token_id=1000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures = .*\n.*Qwen3ForCausalLM.* others .*transformers"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architectures = .*\n.*Qwen3-MoE .*vllm, sglang or transformers"),
        ({"architectures": ["Qwen3VLForConditionalGeneration"]}, "architectures = .*\n.*Qwen3-VL .*vllm or sglang"),
        ({"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}, "use_sliding_window = true\n.*not supp"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "llama"}, "model_type = .*\n.*Qwen3ForCausalLM: qwen3"),
        ({"architectures": ...}, "architectures is missing\n.*LlamaForCausalLM"),
        ({"hidden_size": ...}, "hidden_size is missing\n.*positive integer"),
        ({"hidden_size": "64"}, 'hidden_size = "64"\n.*positive integer'),
        ({"hidden_size": True}, "hidden_size = true\n.*positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0\n.*positive integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3\n.*divide num_attention_heads = 4"),
        ({"num_attention_heads": 6}, "head_dim is missing\n.*6 heads do not divide hidden_size = 64"),
        ({"head_dim": 15}, "head_dim = 15\n.*even"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"\n.*silu'),
        ({"attention_bias": True}, "attention_bias = true\n.*bias"),
        ({"mlp_bias": True}, "mlp_bias = true\n.*bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .*\n.*unquantised"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0\n.*positive number"),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings = "no"\n.*true or false'),
        ({"eos_token_id": 1000}, "eos_token_id = 1000\n.*below vocab_size = 1000"),
        ({"eos_token_id": [1, -2]}, r"eos_token_id = \[1, -2\]\n.*≥ 0"),
        ({"rope_scaling": 4}, "rope_scaling = 4\n.*object"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "sliding_window = 4096\n.*not supported"),
    ],
)
def test_a_wrong_key_is_named_with_what_would_be_right(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"folder/config\.json: {message}"):
        target_geometry(keys(LLAMA, **changes))


def test_a_missing_folder_and_a_missing_config_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/config\.json: no such file\n.*no such folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json: no such file\n.*checkpoint folder"):
        read_config(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "not readable as JSON"), ("[1]", "holds a list\n.*JSON object")])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("residual_multiplier", 0.22),
        ("attention_multiplier", 0.0078125),
        ("embedding_multiplier", 12.0),
        ("logits_scaling", 8.0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("rope_interleaved", True),
        ("no_rope_layers", [1, 1, 1, 0]),
        ("query_pre_attn_scalar", 256),
        ("clip_qkv", 8.0),
        ("use_qk_norm", True),
        ("num_local_experts", 8),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("model_type", "granite"),
    ],
)
def test_a_key_of_a_related_architecture_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} = "):
        target_geometry(keys(LLAMA, **{key: value}))


@pytest.mark.parametrize(
    "neutral",
    [
        {"residual_multiplier": 1.0, "logit_scale": 1, "rope_interleaved": False, "attn_logit_softcapping": None},
        {"use_qk_norm": False, "clip_qkv": None, "num_local_experts": 0, "layer_types": ["full_attention"] * 32},
        {"model_type": "llama", "is_llama_config": True, "pretraining_tp": 1, "attention_dropout": 0.0},
    ],
)
def test_a_key_that_changes_nothing_is_accepted(neutral: dict[str, object]) -> None:
    assert target_geometry(keys(LLAMA, **neutral)) == target_geometry(keys(LLAMA))


@pytest.mark.parametrize(
    "names", [["Qwen2ForCausalLM", "LlamaForCausalLM"], ["LlamaForCausalLM", "GraniteForCausalLM"], [], [None], "x"]
)
def test_every_architecture_that_is_named_must_be_supported(names: object) -> None:
    with pytest.raises(CheckpointError, match="architectures = "):
        target_geometry(keys(LLAMA, architectures=names))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 10**400),
        ("num_hidden_layers", 10**7),
        ("vocab_size", 1 << 40),
        ("rms_norm_eps", 10**400),
        ("rope_theta", 1),
        ("rope_theta", 1e300),
        ("eos_token_id", list(range(2000))),
    ],
)
def test_sizes_beyond_all_models_are_refused_before_anything_is_made_of_them(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=key) as caught:
        target_geometry(keys(LLAMA, **{key: value}))
    assert len(str(caught.value)) < 300

"""Sizes of targets of any architecture, from configs as their publishers wrote them (the keys that matter)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from specgate.checkpoints.hf.any_target import read_any_target
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import Keys, read_config
from specgate.checkpoints.parameters import least_weight_bytes
from specgate.errors import CheckpointError

YARN_OF_GPT_OSS = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
    "truncate": False,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "eos_token_id": 200002,
    "head_dim": 64,
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": YARN_OF_GPT_OSS,
    "vocab_size": 201088,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "eos_token_id": 151645,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "rope_scaling": None,
    "vocab_size": 151936,
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}
MISTRAL3 = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "text_config": {"max_position_embeddings": 131072, "num_hidden_layers": 40, "vocab_size": 131072},
    "vision_config": {"num_hidden_layers": 24},
}
KNOWN: dict[str, tuple[dict[str, Any], tuple[int, int, int | None, tuple[int, ...]]]] = {
    "gpt-oss-120b": (GPT_OSS, (201088, 36, 131072, (200002,))),
    "gpt-oss-20b": (GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32}, (201088, 24, 131072, (200002,))),
    "Qwen3-8B": (QWEN3, (151936, 36, 40960, (151645,))),
    "Qwen3-30B-A3B": (QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "num_hidden_layers": 48},
                      (151936, 48, 40960, (151645,))),
    "Qwen3-8B with YaRN": (QWEN3 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                     "original_max_position_embeddings": 32768}},
                           (151936, 36, 131072, (151645,))),
    "DeepSeek-V3": ({"architectures": ["DeepseekV3ForCausalLM"], "eos_token_id": 1, "max_position_embeddings": 163840,
                     "num_hidden_layers": 61, "vocab_size": 129280,
                     "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}},
                    (129280, 61, 163840, (1,))),
    "Mistral-Small-3.1": (MISTRAL3, (131072, 40, 131072, ())),
    "Gemma 2": ({"architectures": ["Gemma2ForCausalLM"], "eos_token_id": 1, "max_position_embeddings": 8192,
                 "num_hidden_layers": 26, "vocab_size": 256000}, (256000, 26, 8192, (1,))),
    "Command R": ({"eos_token_id": 255001, "max_position_embeddings": 8192, "model_max_length": 131072,
                   "num_hidden_layers": 40, "vocab_size": 256000}, (256000, 40, 131072, (255001,))),
    "GLM 4": ({"eos_token_id": [151329, 151336], "padded_vocab_size": 151552, "num_layers": 40, "seq_length": 131072},
              (151552, 40, 131072, (151329, 151336))),
}  # fmt: skip


def folder(place: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (place / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (place / "generation_config.json").write_text(json.dumps(generation))
    return place


@pytest.mark.parametrize("name", KNOWN)
def test_published_configs_are_read(name: str, tmp_path: Path) -> None:
    config, expected = KNOWN[name]
    target = read_any_target(folder(tmp_path, config))
    assert (target.vocab, target.layers, target.max_positions, target.eos_token_ids) == expected
    assert target.architecture == config.get("architectures", [None])[0]


def test_what_generation_stops_at_is_added(tmp_path: Path) -> None:
    target = read_any_target(folder(tmp_path, GPT_OSS, {"eos_token_id": [200002, 199999, 200012]}))
    assert target.eos_token_ids == (200002, 199999, 200012)
    assert [file.name for file in target.files] == ["config.json", "generation_config.json"]


def test_gemma_3_leaves_its_vocabulary_to_its_tokenizer_and_its_positions_to_its_class(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: text_config.vocab_size is missing"):
        read_any_target(folder(tmp_path, GEMMA3))
    words = {word: number for number, word in enumerate(["a", *(f"w{i}" for i in range(300))])}
    Tokenizer(models.WordLevel(words, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    target = read_any_target(tmp_path)
    assert (target.vocab, target.layers, target.max_positions, target.eos_token_ids) == (301, 34, None, (1, 106))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": None}, "vocab_size = null"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"vocab_size": "201088"}, 'vocab_size = "201088"'),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"num_hidden_layers": None}, "num_hidden_layers = null"),
        ({"max_position_embeddings": 1e6}, r"max_position_embeddings = 1000000.0"),
        ({"eos_token_id": 201088}, "eos_token_id = 201088"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id = "),
        ({"rope_scaling": [1]}, r"rope_scaling = \[1\]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "x", "original_max_position_embeddings": 1}}, "factor = "),
        ({"architectures": "GptOss"}, 'architectures = "GptOss"'),
        ({"text_config": 3}, "text_config = 3"),
    ],
)
def test_an_odd_key_is_named_with_its_file_and_value(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: (\w+\.)?{message}"):
        read_any_target(folder(tmp_path, GPT_OSS | changed))


def test_ends_outside_of_the_vocabulary_are_named_with_their_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id = 999999"):
        read_any_target(folder(tmp_path, GPT_OSS, {"eos_token_id": 999999}))


def test_it_agrees_with_the_reader_of_our_own_engines(pair: tuple[Path, Path]) -> None:
    target, own = read_any_target(pair[0]), target_geometry(read_config(pair[0]))
    assert (target.vocab, target.layers, target.max_positions) == (own.vocab, own.layers, own.max_positions)
    assert target.eos_token_ids[: len(own.eos_token_ids)] == own.eos_token_ids


def test_an_architecture_that_is_not_known_has_no_floor_of_bytes(tmp_path: Path) -> None:
    assert least_weight_bytes(folder(tmp_path, GPT_OSS)) is None


@given(st.dictionaries(st.sampled_from([*GPT_OSS, "text_config"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["vocab_size", "rope_type"]), inner),
    max_leaves=4,
)))  # fmt: skip
def test_no_config_is_a_surprise(changed: dict[str, Any]) -> None:
    """Whatever a key holds: sizes of the right kind, or an error that names the file."""
    from specgate.checkpoints.hf import any_target

    keys = Keys(Path("config.json"), GPT_OSS | changed)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(any_target, "read_config", lambda folder: keys)
            target = read_any_target(Path("nowhere"))
    except CheckpointError as error:
        assert error.message.startswith("config.json: ")
    else:
        assert (
            target.vocab > 0 and (target.layers or 0) > 0 and all(0 <= i < target.vocab for i in target.eos_token_ids)
        )

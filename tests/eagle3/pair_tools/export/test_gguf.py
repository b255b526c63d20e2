"""GGUF files, read back by transformers, by our own converter and by the gguf package.

The converter of llama.cpp b11434 wrote the demo pair's files with the same tensors, bit by bit, and the same keys but
for `general.*` (compared by hand; see backends/eagle3/docs/exporting.md).
"""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specgate.backends.eagle3.pair_tools.export.command import Wish, export
from specgate.backends.eagle3.pair_tools.export.gguf_model import interleaved, rope_factors, stream
from specgate.backends.eagle3.pair_tools.export.opened import in_memory
from specgate.backends.eagle3.pair_tools.shards import LazyTensor
from specgate.backends.eagle3.pairs.gguf_convert import convert, half_split_rows
from specgate.checkpoints.geometry import RopeSpec
from specgate.contract import PairRef
from specgate.errors import CheckpointError, SpecgateError, UsageError
from tests.eagle3.pair_tools.export.textual import BOS, SPECIAL, TEXT, change, textual_pair, write_tokenizer

QUERY = "midlayer.self_attn.q_proj.weight"


def exported(ref: PairRef, out: Path, dtype: torch.dtype | None = None) -> Path:
    export(ref, Wish("gguf", out, dtype))
    return out


def keys(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


def values(file: Path) -> dict[str, np.ndarray]:
    """Tensors in the shape of Hugging Face, floats as float32."""
    out = {}
    for t in gguf.GGUFReader(file).tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        plain = t.tensor_type == gguf.GGMLQuantizationType.I64
        out[t.name] = t.data if plain else gguf.dequantize(t.data, t.tensor_type).reshape(shape)
    return out


def read_by_transformers(file: Path) -> LlamaForCausalLM:
    """By its own names, row order and config keys; `from_pretrained(gguf_file=…)` does the same with accelerate."""
    config = load_gguf_checkpoint(file)["config"]
    model = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in config.items() if key != "model_type"}))
    tensors = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict({name: torch.as_tensor(value) for name, value in tensors.items()}, strict=False)
    model.tie_weights()
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_transformers_gives_the_logits_of_the_source(tmp_path: Path, dtype: torch.dtype) -> None:
    ref = textual_pair(tmp_path, tied=True)
    out = exported(ref, tmp_path / "out", dtype)
    source = AutoModelForCausalLM.from_pretrained(ref.target)
    source.load_state_dict({name: tensor.to(dtype) for name, tensor in source.state_dict().items()})
    read = read_by_transformers(out / "target.gguf")
    ids = torch.arange(64).unsqueeze(0)
    with torch.no_grad():
        assert torch.allclose(source(ids).logits, read(ids).logits, atol=1e-5, rtol=0)


def test_our_own_converter_reads_weights_and_tokenizer_back(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path, kind="smollm")
    out = exported(ref, tmp_path / "out", torch.bfloat16)
    convert(out / "target.gguf", tmp_path / "back")
    source, back = (load_file(folder / "model.safetensors") for folder in (ref.target, tmp_path / "back"))
    assert source.keys() == back.keys()
    assert all(torch.equal(back[name], source[name].to(torch.bfloat16)) for name in source)
    before, after = (Tokenizer.from_file(str(f / "tokenizer.json")) for f in (ref.target, tmp_path / "back"))
    assert [before.encode(text).ids for text in TEXT] == [after.encode(text).ids for text in TEXT]
    assert json.loads((tmp_path / "back" / "config.json").read_text())["max_position_embeddings"] == 4096


def test_the_draft_has_the_tensors_and_keys_that_llama_cpp_reads(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path, layers=6, boundaries=(1, 3, 6))
    out = exported(ref, tmp_path / "out")
    assert ref.draft is not None
    source, got, metadata = (
        load_file(ref.draft / "model.safetensors"),
        values(out / "draft.gguf"),
        keys(out / "draft.gguf"),
    )
    same = {
        "fc.weight": "fc.weight",
        "output_norm.weight": "norm.weight",
        "output.weight": "lm_head.weight",
        "blk.0.attn_norm.weight": "midlayer.input_layernorm.weight",
        "blk.0.attn_norm_2.weight": "midlayer.hidden_norm.weight",
        "blk.0.attn_v.weight": "midlayer.self_attn.v_proj.weight",
        "blk.0.attn_output.weight": "midlayer.self_attn.o_proj.weight",
        "blk.0.ffn_norm.weight": "midlayer.post_attention_layernorm.weight",
        "blk.0.ffn_gate.weight": "midlayer.mlp.gate_proj.weight",
        "blk.0.ffn_up.weight": "midlayer.mlp.up_proj.weight",
        "blk.0.ffn_down.weight": "midlayer.mlp.down_proj.weight",
    }
    assert got.keys() == {*same, "d2t", "blk.0.attn_q.weight", "blk.0.attn_k.weight"}
    for theirs, ours in same.items():
        assert np.array_equal(got[theirs], source[ours].numpy()), theirs
    assert sorted(got["d2t"].tolist()) == torch.nonzero(source["t2d"]).flatten().tolist(), "ids, not offsets"
    expected = {
        "general.architecture": "eagle3",
        "eagle3.target_layers": [1, 3, 6],
        "eagle3.target_hidden_size": 64,
        "eagle3.norm_before_residual": False,
        "eagle3.norm_before_fc": False,
        "eagle3.block_count": 1,
        "eagle3.embedding_length": 64,
        "eagle3.attention.head_count": 4,
        "eagle3.attention.head_count_kv": 2,
        "eagle3.attention.key_length": 16,
        "eagle3.rope.freq_base": 10000.0,
        "eagle3.rope.dimension_count": 16,
        "eagle3.vocab_size": 320,
        "tokenizer.ggml.bos_token_id": BOS,
    }
    assert {key: metadata[key] for key in expected} == expected


def test_a_norm_before_fc_is_written_with_its_switch(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    change(ref.draft / "config.json", norm_before_fc=True, norm_before_residual=True)
    weights = load_file(ref.draft / "model.safetensors") | {"input_norm.weight": torch.rand(192)}
    save_file(weights, ref.draft / "model.safetensors")
    file = exported(ref, tmp_path / "out") / "draft.gguf"
    assert np.array_equal(values(file)["enc.output_norm.weight"], weights["input_norm.weight"].numpy())
    assert keys(file)["eagle3.norm_before_fc"] is True and keys(file)["eagle3.norm_before_residual"] is True


def test_query_and_key_rows_are_interleaved_head_by_head(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    weight = load_file(ref.draft / "model.safetensors")[QUERY].numpy()
    got = values(exported(ref, tmp_path / "out") / "draft.gguf")["blk.0.attn_q.weight"]
    for head in range(4):
        for i in range(8):
            assert np.array_equal(got[16 * head + 2 * i], weight[16 * head + i])
            assert np.array_equal(got[16 * head + 2 * i + 1], weight[16 * head + i + 8])


@given(heads=st.integers(1, 5), half=st.integers(1, 6), width=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_interleaving_is_undone_by_the_converter(heads: int, half: int, width: int, seed: int) -> None:
    weight = torch.rand(heads * 2 * half, width, generator=torch.Generator().manual_seed(seed))
    there = interleaved(in_memory(weight), heads).read()
    assert np.array_equal(half_split_rows(there.numpy(), heads), weight.numpy())


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int64]),
)
def test_whatever_is_streamed_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[int]], dtype: torch.dtype
) -> None:
    file = tmp_path_factory.mktemp("gguf") / "m.gguf"
    tensors = {f"t{i}": (torch.rand(shape) * 100).to(dtype) for i, shape in enumerate(shapes)}
    stream(gguf.GGUFWriter(file, "llama"), iter([(name, in_memory(t)) for name, t in tensors.items()]))
    got = values(file)
    assert list(got) == list(tensors)
    assert all(np.array_equal(got[n].reshape(t.shape), t.double().numpy()) for n, t in tensors.items())


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    made: list[weakref.ref[np.ndarray]] = []

    def read() -> torch.Tensor:
        assert all(array() is None for array in made), "the tensor before is still held"
        array = np.zeros((8, 8), np.float32)
        made.append(weakref.ref(array))
        return torch.from_numpy(array)

    lazy = LazyTensor((8, 8), torch.float32, read)
    stream(gguf.GGUFWriter(tmp_path / "m.gguf", "llama"), iter([(f"t{i}", lazy) for i in range(4)]))
    assert len(made) == len(values(tmp_path / "m.gguf")) == 4


def test_llama_3s_smoothing_becomes_factors() -> None:
    """The formula of Llama 3.1's reference code, wave by wave."""
    spec = RopeSpec("llama3", 5e5, 64, 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    expected = []
    for i in range(32):
        wave = 2 * math.pi * 5e5 ** (2 * i / 64)
        smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
        blend = 1 / ((1 - smooth) / 8.0 + smooth)
        expected.append(1.0 if wave < 8192 / 4.0 else 8.0 if wave > 8192 else blend)
    assert np.allclose(rope_factors(spec).read().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
            {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 512,
                "yarn_beta_fast": 32.0,
                "yarn_beta_slow": 1.0,
            },
        ),
    ],
    ids=["linear", "yarn"],
)
def test_rope_scaling_is_written(tmp_path: Path, scaling: dict[str, Any], expected: dict[str, Any]) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    for folder in (ref.target, ref.draft):
        change(folder / "config.json", rope_scaling=scaling)
    out = exported(ref, tmp_path / "out")
    for file, arch in (("target.gguf", "llama"), ("draft.gguf", "eagle3")):
        prefix = f"{arch}.rope.scaling."
        assert {k.removeprefix(prefix): v for k, v in keys(out / file).items() if k.startswith(prefix)} == expected


def test_an_attention_factor_is_written_relative_to_yarns_own(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    scaling = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7}
    change(ref.target / "config.json", rope_scaling=scaling)
    metadata = keys(exported(ref, tmp_path / "out") / "target.gguf")
    assert metadata["llama.rope.scaling.attn_factor"] * (1 + 0.1 * math.log(4.0)) == pytest.approx(0.7)


@pytest.mark.parametrize("kind", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_tokenizer_is_named_as_llama_cpp_names_it(tmp_path: Path, kind: str) -> None:
    ref = textual_pair(tmp_path, kind=kind)
    metadata = keys(exported(ref, tmp_path / "out") / "target.gguf")
    tokenizer = Tokenizer.from_file(str(ref.target / "tokenizer.json"))
    assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) == ("gpt2", kind)
    words, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert len(words) == len(kinds) == 320
    assert all(words[i] == tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size()))
    assert [word for word, k in zip(words, kinds, strict=True) if k == gguf.TokenType.CONTROL] == list(SPECIAL)
    assert kinds.count(gguf.TokenType.UNUSED) == 320 - tokenizer.get_vocab_size()
    merges = json.loads((ref.target / "tokenizer.json").read_text())["model"]["merges"]
    assert metadata["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]


@pytest.mark.parametrize("adds", [True, False])
def test_whether_a_start_token_is_added_is_written_down(tmp_path: Path, adds: bool) -> None:
    ref = textual_pair(tmp_path)
    write_tokenizer(ref.target, "llama-bpe", adds_bos=adds)
    metadata = keys(exported(ref, tmp_path / "out") / "target.gguf")
    assert (metadata["tokenizer.ggml.add_bos_token"], metadata["tokenizer.ggml.add_eos_token"]) == (adds, False)


def refusal(ref: PairRef, out: Path, kind: type[SpecgateError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        export(ref, Wish("gguf", out))
    assert not out.exists() and [p.name for p in out.parent.iterdir()] == ["source"], "nothing is left behind"
    return str(caught.value)


@pytest.mark.parametrize("switch", ["fc_norm", "norm_output"])
def test_a_switch_that_llama_cpp_lacks_is_refused(tmp_path: Path, switch: str) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    change(ref.draft / "config.json", **{switch: True})
    norms = {f"fc_norm.{i}.weight": torch.rand(64) for i in range(3)} if switch == "fc_norm" else {}
    save_file(load_file(ref.draft / "model.safetensors") | norms, ref.draft / "model.safetensors")
    assert f"llama.cpp has no {switch}" in refusal(ref, tmp_path / "out")


def test_another_number_of_captured_streams_is_refused(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path, boundaries=(1, 2))
    assert "drafts over 2 captured streams, it wants 3" in refusal(ref, tmp_path / "out")


def test_yarn_that_is_not_truncated_is_refused(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    change(ref.target / "config.json", rope_scaling={"rope_type": "yarn", "factor": 4.0, "truncate": False})
    assert "YaRN with truncate = false" in refusal(ref, tmp_path / "out")


def test_float64_weights_are_refused_with_the_option_that_helps(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    weights = {name: tensor.double() for name, tensor in load_file(ref.target / "model.safetensors").items()}
    save_file(weights, ref.target / "model.safetensors")
    assert "--dtype float32" in refusal(ref, tmp_path / "out")
    exported(ref, tmp_path / "out", torch.float32)


def test_a_pair_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    (ref.target / "tokenizer.json").unlink()
    message = refusal(ref, tmp_path / "out")
    assert "tokenizer.json: no such file" in message and "--format hf or speculators" in message


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    (ref.target / "tokenizer.json").write_text("{")
    assert "tokenizer.json: not readable as a tokenizer" in refusal(ref, tmp_path / "out", CheckpointError)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("pre_tokenizer", None, "pre-tokenizer"),
        ("pre_tokenizer", {"type": "Whitespace"}, "Whitespace"),
        ("normalizer", {"type": "NFC"}, "BPE model"),
        ("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "WordLevel model"),
    ],
)
def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(
    tmp_path: Path, section: str, value: object, message: str
) -> None:
    ref = textual_pair(tmp_path)
    file = ref.target / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), section: value}))
    assert message in refusal(ref, tmp_path / "out")


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    tokenizer = Tokenizer.from_file(str(ref.target / "tokenizer.json"))
    tokenizer.add_tokens([f"<{i}>" for i in range(12)])
    tokenizer.save(str(ref.target / "tokenizer.json"))
    assert "token 320, but the target has 320 embeddings" in refusal(ref, tmp_path / "out", CheckpointError)

"""The converter against transformers: a random Llama model is written as GGUF, converted, and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specgate.backends.eagle3.pairs.gguf_convert import PER_LAYER, bfloat16_bits, convert
from specgate.errors import CheckpointError

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 4, 2, 16, 64, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "1 2"]
WORDS = [*SPECIAL, *BYTES, *(m.replace(" ", "") for m in MERGES)]
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=len(WORDS),
        max_position_embeddings=128,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    built = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            scale = 1.0 if "norm" in name else 0.2
            weight.copy_((torch.randn_like(weight) * scale).to(torch.bfloat16))
    return built


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's row order, row by row: rows i and i + d/2 of a head become rows 2i and 2i + 1."""
    d = weight.shape[0] // heads
    out = np.empty_like(weight)
    for h in range(heads):
        for i in range(d // 2):
            out[h * d + 2 * i] = weight[h * d + i]
            out[h * d + 2 * i + 1] = weight[h * d + i + d // 2]
    return out


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    state = {name: value.detach().float().numpy() for name, value in model.state_dict().items()}
    out = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    for layer in range(LAYERS):
        for ours, theirs in PER_LAYER.items():
            out[f"blk.{layer}.{theirs}"] = state[f"model.layers.{layer}.{ours}"]
        for name, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            key = f"blk.{layer}.{name}.weight"
            out[key] = interleaved(out[key], heads)
    return out


def write(
    file: Path,
    tensors: dict[str, np.ndarray],
    *,
    arch: str = "llama",
    pre: str = "smollm",
    quantised: tuple[str, ...] = (),
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    w = gguf.GGUFWriter(file, arch)
    w.add_block_count(LAYERS)
    w.add_context_length(128)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(96)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_rope_freq_base(5000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(WORDS)
    w.add_token_types([3 if word in SPECIAL else 1 for word in WORDS])
    w.add_token_merges(MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template(CHAT)
    extra(w)
    for name, value in tensors.items():
        if name in quantised:
            kind = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
        else:
            w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file


@pytest.fixture(scope="module")
def converted(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    convert(write(folder / "tiny.gguf", gguf_tensors(model)), folder / "hf")
    return folder / "hf"


def test_the_converted_folder_gives_the_logits_of_the_model_that_was_written(
    model: LlamaForCausalLM, converted: Path
) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    ids = torch.arange(3, 67).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.config.rms_norm_eps == 1e-5
    assert (loaded.config.bos_token_id, loaded.config.eos_token_id) == (1, 2)
    assert loaded.config.max_position_embeddings == 128


def test_an_untied_head_is_kept_apart_from_the_embedding(model: LlamaForCausalLM, tmp_path: Path) -> None:
    head = np.random.default_rng(0).standard_normal((len(WORDS), HIDDEN), dtype=np.float32)
    convert(write(tmp_path / "m.gguf", gguf_tensors(model) | {"output.weight": head}), tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    assert not loaded.config.tie_word_embeddings
    assert torch.equal(loaded.lm_head.weight, torch.from_numpy(head).to(torch.bfloat16).float())


def test_a_quantised_tensor_is_decoded_and_rounded_once(model: LlamaForCausalLM, tmp_path: Path) -> None:
    tensors, name = gguf_tensors(model), "blk.0.ffn_down.weight"
    convert(write(tmp_path / "m.gguf", tensors, quantised=(name,)), tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    blocks = tensors[name].reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    got = loaded.model.layers[0].mlp.down_proj.weight.detach().numpy().reshape(-1, 32)
    assert np.all(np.abs(got - blocks) <= scale * 0.51 + np.abs(blocks) / 128)
    assert not np.array_equal(got, blocks)


@given(st.lists(st.floats(width=32, allow_nan=False, min_value=-(2.0**127), max_value=2.0**127), min_size=1))
def test_rounding_to_bfloat16_is_that_of_torch(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bfloat16_bits(array), expected)


@pytest.fixture(scope="module")
def tokenizer(converted: Path) -> Tokenizer:
    return Tokenizer.from_file(str(converted / "tokenizer.json"))


@given(text=st.text())
def test_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["def f(x):\n\treturn x**2  # naïve\r\n", "日本 🤖👩‍👩‍👧 ½", "<|im_start|>user\nhi<|im_end|>"]
)
def test_code_unicode_and_special_tokens_survive_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_stand_alone_and_special_tokens_are_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(" the<|im_end|>12").tokens == ["Ġthe", "<|im_end|>", "1", "2"]
    assert tokenizer.encode("in", add_special_tokens=True).ids == [WORDS.index("in")]


def test_transformers_reads_the_tokenizer_with_its_special_tokens_and_chat_template(converted: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(converted)
    assert (loaded.bos_token, loaded.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert loaded(" the 12").input_ids == [WORDS.index(w) for w in ("Ġthe", "Ġ", "1", "2")]
    assert loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def without(tensors: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {k: v for k, v in tensors.items() if k != name}


@pytest.fixture
def refused(model: LlamaForCausalLM, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Convert a file written with changes, expect a refusal, return what it says."""

    def run(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict, **options: object) -> str:
        file = write(tmp_path / "bad.gguf", change(gguf_tensors(model)), **options)  # type: ignore[arg-type]  # by name
        with pytest.raises(CheckpointError) as caught:
            convert(file, tmp_path / "out")
        assert "bad.gguf" in str(caught.value)
        return str(caught.value)

    yield run
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"], "a refused conversion leaves nothing behind"


def test_another_architecture_is_refused(refused: Callable[..., str]) -> None:
    assert "general.architecture = 'gpt2'" in refused(arch="gpt2")


def test_another_pre_tokenizer_is_refused(refused: Callable[..., str]) -> None:
    assert "tokenizer.ggml.pre = 'llama-bpe'" in refused(pre="llama-bpe")


def test_a_tokenizer_that_adds_a_token_is_refused(refused: Callable[..., str]) -> None:
    assert "tokenizer.ggml.add_bos_token = true" in refused(extra=lambda w: w.add_add_bos_token(True))


def test_rope_scaling_is_refused(refused: Callable[..., str]) -> None:
    assert "rope.scaling.type = 'yarn'" in refused(extra=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN))


def test_a_missing_tensor_is_named(refused: Callable[..., str]) -> None:
    assert "missing: blk.1.ffn_up.weight" in refused(lambda t: without(t, "blk.1.ffn_up.weight"))


def test_a_left_over_tensor_is_named(refused: Callable[..., str]) -> None:
    assert "left over: rope_freqs.weight" in refused(lambda t: t | {"rope_freqs.weight": np.ones(8, np.float32)})


def test_a_misshapen_tensor_is_named_with_both_shapes(refused: Callable[..., str]) -> None:
    message = refused(lambda t: t | {"blk.0.attn_k.weight": np.ones((16, HIDDEN), np.float32)})
    assert "blk.0.attn_k.weight is (16, 64), its metadata wants (32, 64)" in message


def test_a_tensor_type_that_holds_no_weights_is_named(refused: Callable[..., str]) -> None:
    message = refused(lambda t: t | {"output_norm.weight": np.ones(HIDDEN, np.int32)})
    assert "output_norm.weight has type I32" in message


def test_a_truncated_file_is_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", gguf_tensors(model))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"m\.gguf: not a readable GGUF file"):
        convert(file, tmp_path / "out")

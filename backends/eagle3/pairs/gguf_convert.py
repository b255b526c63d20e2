"""Convert a llama-architecture GGUF file to a Hugging Face folder: weights in bfloat16, config, tokenizer.

The row order of the query and key projections is that of llama.cpp's converter. The conversion needs neither torch nor
transformers; both can read the folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.backends.eagle3.pairs.gguf_file import HEAD, Metadata, Sizes
from specgate.backends.eagle3.pairs.gguf_tokenizer import tokenizer_config, write_tokenizer
from specgate.backends.eagle3.pairs.whole_folder import appearing
from specgate.checkpoints.files import listed
from specgate.errors import CheckpointError
from specgate.files.panics import refusing

if TYPE_CHECKING:
    import numpy as np
    from gguf import ReaderTensor
    from numpy.typing import NDArray

OUTER: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}
UNTIED_HEAD: Final = {"lm_head.weight": HEAD}
PER_LAYER: Final = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def convert(gguf_file: Path, out: Path) -> None:
    """Write `out/{config,generation_config,tokenizer,tokenizer_config}.json` and `out/model.safetensors`.

    `out` must not exist yet, and appears whole or not at all. Raises CheckpointError for another architecture,
    tokenizer or RoPE scaling, and for missing, misshapen, left-over or undecodable tensors.
    """
    metadata = Metadata.read(gguf_file)
    sizes = Sizes.from_metadata(metadata)
    tensors = resolve_tensors(metadata, sizes)
    with appearing(out) as partial:
        write_json(partial / "config.json", config(metadata, sizes))
        write_json(partial / "generation_config.json", special_ids(metadata))
        write_json(partial / "tokenizer_config.json", tokenizer_config(metadata, sizes))
        write_tokenizer(partial / "tokenizer.json", metadata)
        write_safetensors(partial / "model.safetensors", metadata, sizes, tensors)


def resolve_tensors(m: Metadata, sizes: Sizes) -> dict[str, ReaderTensor]:
    """Hugging Face name → GGUF tensor. Raises CheckpointError unless each is there once and has the right shape."""
    names = dict(OUTER)
    if not sizes.tied:
        names |= UNTIED_HEAD
    for layer in range(sizes.layers):
        names |= {f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in PER_LAYER.items()}
    present = {tensor.name: tensor for tensor in m.reader.tensors}
    missing = listed(sorted(set(names.values()) - set(present)))
    left_over = listed(sorted(set(present) - set(names.values())))
    if missing or left_over:
        raise CheckpointError(
            f"{m.file}: tensors missing: {missing or 'none'}; left over: {left_over or 'none'}",
            hint=f"a llama model of {sizes.layers} layers without biases has {len(names)} tensors",
        )
    for ours, theirs in names.items():
        # GGUF lists the fastest-running axis first.
        shape = tuple(int(n) for n in reversed(present[theirs].shape))
        if shape != sizes.shape(ours):
            raise CheckpointError(f"{m.file}: tensor {theirs} is {shape}, its metadata wants {sizes.shape(ours)}")
    return {ours: present[theirs] for ours, theirs in names.items()}


def load(m: Metadata, sizes: Sizes, name: str, tensor: ReaderTensor) -> NDArray[np.uint16]:
    """The bfloat16 bits of the Hugging Face tensor `name`."""
    import gguf

    what = f"{m.file}: tensor {tensor.name} has type {tensor.tensor_type.name}, which cannot be decoded"
    with refusing(lambda why: CheckpointError(f"{what} ({why})")):
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
    if name.endswith("q_proj.weight"):
        values = half_split_rows(values, sizes.heads)
    elif name.endswith("k_proj.weight"):
        values = half_split_rows(values, sizes.kv_heads)
    return bfloat16_bits(values)


def half_split_rows(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's row order of a `[heads * head_dim, hidden]` projection.

    llama.cpp rotates neighbouring rows (2i, 2i + 1) of a head together. Hugging Face rotates rows (i, i + head_dim /
    2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Finite float32 values rounded to bfloat16, to nearest with ties to even, as bit patterns."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def write_safetensors(file: Path, m: Metadata, sizes: Sizes, tensors: Mapping[str, ReaderTensor]) -> None:
    """Stream `tensors` into one file, one tensor in memory at a time.

    Written by hand because numpy, and with it `safetensors.numpy`, has no bfloat16. The file holds the header's length
    (8 bytes, little-endian), the JSON header padded with spaces to a multiple of 8, and the data without gaps.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, start, end in extents(tensors, sizes):
        header[name] = {"dtype": "BF16", "shape": sizes.shape(name), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for name, tensor in tensors.items():
            stream.write(load(m, sizes, name, tensor).tobytes())


def extents(names: Iterable[str], sizes: Sizes) -> Iterator[tuple[str, int, int]]:
    """(name, first byte, byte after the last) of every tensor in the data section."""
    start = 0
    for name in names:
        end = start + 2 * math.prod(sizes.shape(name))
        yield name, start, end
        start = end


def config(m: Metadata, sizes: Sizes) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.positions,
        "rope_theta": sizes.rope_theta,
        "rms_norm_eps": sizes.rms_eps,
        "tie_word_embeddings": sizes.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        **special_ids(m),
    }


def special_ids(m: Metadata) -> dict[str, object]:
    ids = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {ours: m.token_id(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in ids.items()}


def write_json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

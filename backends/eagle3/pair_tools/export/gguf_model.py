"""A pair as GGUF: metadata, and tensors in the order and form that llama.cpp reads.

Sources: the GGUF specification; llama.cpp b11434 for row order, rope factors and `d2t`.

Sources: the GGUF specification; llama.cpp b11434 for the architecture `eagle3` (its loader and its converter).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.rope import inverse_frequencies
from specgate.backends.eagle3.pair_tools.export.gguf_vocab import Vocabulary
from specgate.backends.eagle3.pair_tools.export.opened import OpenPair, draft_tensors, dtype_name, target_tensors
from specgate.backends.eagle3.pair_tools.shards import LazyTensor
from specgate.backends.eagle3.pairs.gguf_convert import OUTER, PER_LAYER, UNTIED_HEAD
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.hf.target import require_dense
from specgate.errors import UsageError

if TYPE_CHECKING:
    from gguf import GGUFWriter


def as_stored(tensors: Mapping[str, LazyTensor], g: TargetGeometry | DraftGeometry) -> Iterator[tuple[str, LazyTensor]]:
    """The tensors in llama.cpp's conventions.

    Rows of query and key projections are interleaved, but of Qwen3, vectors are float32, and `d2t` holds absolute
    target ids.
    """
    turned = not (isinstance(g, TargetGeometry) and g.head_norms)
    if g.rope.kind == "llama3":
        yield "rope_freqs.weight", rope_factors(g.rope)
    for name, tensor in tensors.items():
        if turned and name.endswith("attn_q.weight"):
            yield name, interleaved(tensor, g.heads)
        elif turned and name.endswith("attn_k.weight"):
            yield name, interleaved(tensor, g.kv_heads)
        elif name == "d2t":
            yield name, absolute(tensor)
        else:
            yield name, tensor.to(torch.float32) if len(tensor.shape) == 1 else tensor


def rope_factors(rope: RopeSpec) -> LazyTensor:
    """float32 [head_dim / 2]: the divisor of each unscaled frequency."""
    plain, _ = inverse_frequencies(RopeSpec("default", rope.base, rope.dim))
    scaled, _ = inverse_frequencies(rope)
    return LazyTensor((rope.dim // 2,), torch.float32, lambda: plain / scaled)


def absolute(offsets: LazyTensor) -> LazyTensor:
    """`d2t` as absolute target ids instead of offsets."""
    return LazyTensor(offsets.shape, offsets.dtype, lambda: offsets.read() + torch.arange(offsets.shape[0]))


def interleaved(weight: LazyTensor, heads: int) -> LazyTensor:
    """Rows of a `[heads * head_dim, width]` projection in llama.cpp's order: the inverse of `half_split_rows`."""

    def read() -> Tensor:
        rows, width = weight.shape
        return weight.read().reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)

    return LazyTensor(weight.shape, weight.dtype, read)


def stream(writer: GGUFWriter, tensors: Iterator[tuple[str, LazyTensor]]) -> None:
    """Write the header, keys and tensor table, then the tensors, one in memory at a time."""
    import gguf
    import numpy as np

    kinds = {
        torch.float32: gguf.GGMLQuantizationType.F32,
        torch.float16: gguf.GGMLQuantizationType.F16,
        torch.bfloat16: gguf.GGMLQuantizationType.BF16,
        torch.int64: gguf.GGMLQuantizationType.I64,
    }
    table = dict(tensors)
    for name, t in table.items():
        # `raw_dtype` decides the type in the file. The NumPy type only says that the data is not quantised.
        writer.add_tensor_info(name, t.shape, np.dtype(np.float32), t.nbytes, raw_dtype=kinds[t.dtype])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for t in table.values():
            writer.write_tensor_data(t.read().contiguous().view(torch.uint8).numpy())
    finally:
        writer.close()


EAGLE3: Final = "eagle3"
DRAFT_OUTER: Final = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "d2t": "d2t",
}
HEAD_NORMS: Final = {f"self_attn.{part}_norm.weight": f"attn_{part}_norm.weight" for part in "qk"}
FILE_TYPES: Final = {"float32": 0, "float16": 1, "bfloat16": 32}
"""The value of `general.file_type` for matrices of a dtype."""


def write_target(file: Path, pair: OpenPair, vocabulary: Vocabulary, dtype: torch.dtype | None) -> None:
    from gguf import GGUFWriter

    g = pair.target.geometry
    names = {**OUTER, **UNTIED_HEAD}
    for layer in range(g.layers):
        parts = {**PER_LAYER, **HEAD_NORMS}
        names |= {f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in parts.items()}
    tensors = {names[name]: tensor for name, tensor in target_tensors(pair, dtype).items()}
    writer = GGUFWriter(file, "qwen3" if g.head_norms else "llama")
    writer.add_name(pair.ref.target.name)
    add_decoder(writer, g, g.layers, tensors)
    vocabulary.add_to(writer)
    stream(writer, as_stored(tensors, g))


def write_draft(file: Path, pair: OpenPair, vocabulary: Vocabulary, dtype: torch.dtype | None) -> None:
    """Write the draft. `d2t` becomes a table of target ids; `t2d` is left out, because llama.cpp does not read it."""
    from gguf import GGUFWriter

    g = pair.draft.geometry
    names = {**DRAFT_OUTER, **{f"midlayer.{ours}": f"blk.0.{theirs}" for ours, theirs in PER_LAYER.items()}}
    tensors = {names[name]: tensor for name, tensor in draft_tensors(pair, dtype).items() if name != "t2d"}
    writer = GGUFWriter(file, EAGLE3)
    assert pair.ref.draft is not None
    writer.add_name(pair.ref.draft.name)
    writer.add_array(f"{EAGLE3}.target_layers", list(pair.draft.capture.boundaries))
    writer.add_uint32(f"{EAGLE3}.target_hidden_size", g.target_hidden)
    writer.add_bool(f"{EAGLE3}.norm_before_residual", g.norm_before_residual)
    writer.add_bool(f"{EAGLE3}.norm_before_fc", g.norm_before_fc)
    add_decoder(writer, g, 1, tensors)
    vocabulary.add_to(writer)
    stream(writer, as_stored(tensors, g))


def refuse_inexpressible(pair: OpenPair, dtype: torch.dtype | None) -> None:
    """Raise UsageError for what llama.cpp would refuse, or would silently compute in another way, and CheckpointError
    for a target with experts, which this export cannot write yet.
    """
    require_dense(pair.target.geometry, pair.target.config.file, "the GGUF export")
    target, draft = pair.target.geometry, pair.draft.geometry
    features = {
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
        f"drafts over {draft.features} captured streams, it wants 3": draft.features != 3,
        "YaRN with truncate = false": not (target.rope.truncate and draft.rope.truncate),
    }
    if any(features.values()):
        lacking = ", no ".join(what for what, there in features.items() if there)
        raise UsageError(
            f"{pair.draft.config.file.parent}: llama.cpp has no {lacking}",
            hint="use --format hf or --format speculators",
        )
    stored = [*target_tensors(pair, dtype).values(), *draft_tensors(pair, dtype).values()]
    if any(tensor.dtype == torch.float64 for tensor in stored):
        raise UsageError("the pair's weights are float64, which llama.cpp does not run", hint="add --dtype float32")


def add_decoder(
    w: GGUFWriter, g: TargetGeometry | DraftGeometry, layers: int, tensors: Mapping[str, LazyTensor]
) -> None:
    """Write the keys that describe a decoder of `layers` layers."""
    w.add_type("model")
    w.add_file_type(FILE_TYPES[dtype_name({n: t for n, t in tensors.items() if len(t.shape) > 1})])
    w.add_quantization_version(2)
    w.add_block_count(layers)
    w.add_context_length(g.max_positions)
    w.add_embedding_length(g.hidden)
    w.add_feed_forward_length(g.intermediate)
    w.add_head_count(g.heads)
    w.add_head_count_kv(g.kv_heads)
    w.add_key_length(g.head_dim)
    w.add_value_length(g.head_dim)
    w.add_vocab_size(g.vocab)
    w.add_layer_norm_rms_eps(g.rms_eps)
    w.add_rope_dimension_count(g.head_dim)
    w.add_rope_freq_base(g.rope.base)
    add_rope_scaling(w, g.rope)


def add_rope_scaling(w: GGUFWriter, rope: RopeSpec) -> None:
    """Write the keys of the RoPE scaling. Llama 3's smoothing is a tensor instead: `rope_factors`."""
    from gguf import RopeScalingType

    if rope.kind == "linear":
        w.add_rope_scaling_type(RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope.factor)
    if rope.kind == "yarn":
        assert rope.original_positions is not None
        w.add_rope_scaling_type(RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope.factor)
        w.add_rope_scaling_orig_ctx_len(rope.original_positions)
        w.add_rope_scaling_yarn_beta_fast(rope.beta_fast)
        w.add_rope_scaling_yarn_beta_slow(rope.beta_slow)
        _, scale = inverse_frequencies(rope)
        if (over_default := scale / (0.1 * math.log(rope.factor) + 1.0)) != 1.0:
            w.add_rope_scaling_attn_factors(over_default)

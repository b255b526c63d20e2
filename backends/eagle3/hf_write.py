"""Geometry → Hugging Face `config.json`: the inverse of `hf_target.py`, `hf_draft.py` and `hf_rope.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from specgate.backends.eagle3.capture import capture_keys
from specgate.backends.eagle3.geometry import DraftGeometry, RopeSpec, TargetGeometry


def target_config(g: TargetGeometry, dtype: str) -> dict[str, object]:
    """Keys of a Llama target; `dtype` as torch spells it, e.g. "bfloat16"."""
    return {
        "architectures": ["LlamaForCausalLM"],
        **layer_config(g, dtype),
        "num_hidden_layers": g.layers,
        "tie_word_embeddings": g.tied_embeddings,
        "bos_token_id": g.bos_token_id,
        "eos_token_id": list(g.eos_token_ids) or None,
    }


def draft_config(g: DraftGeometry, boundaries: Sequence[int], dtype: str) -> dict[str, object]:
    """Keys of an EAGLE-3 draft in the common layout, the captured layers in both conventions.

    Raises ValueError for a draft whose switches the common layout has no keys for.
    """
    if g.fc_norm or g.norm_before_fc or g.norm_output or g.norm_before_residual:
        raise ValueError("the common layout has none of fc_norm, norm_before_fc, norm_output, norm_before_residual")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config(g, dtype),
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": g.draft_vocab,
        **window_keys(g.window),
        **capture_keys(boundaries),
    }


def layer_config(g: TargetGeometry | DraftGeometry, dtype: str) -> dict[str, object]:
    return {
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": g.hidden,
        "intermediate_size": g.intermediate,
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "vocab_size": g.vocab,
        "rms_norm_eps": g.rms_eps,
        **rope_keys(g.rope),
        "max_position_embeddings": g.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
    }


def rope_keys(rope: RopeSpec) -> dict[str, object]:
    """Base and scaling in the older spelling, which every engine reads. Raises ValueError for YaRN."""
    if rope.kind == "default":
        return {"rope_theta": rope.base}
    if rope.kind == "yarn":
        raise ValueError("a YaRN scaling is a checkpoint's own: it is read, never written")
    scaling: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_positions,
        }
    return {"rope_theta": rope.base, "rope_scaling": scaling}


def window_keys(window: int | None) -> dict[str, object]:
    """Written out either way: engines differ in what they assume where a key is missing."""
    if window is None:
        return {"sliding_window": None, "use_sliding_window": False, "layer_types": ["full_attention"]}
    return {"sliding_window": window, "use_sliding_window": True, "layer_types": ["sliding_attention"]}


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_checkpoint(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """`config.json` and one `model.safetensors`, in a folder made where it is missing."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})

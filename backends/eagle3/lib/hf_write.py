"""Write geometry as Hugging Face `config.json`: the inverse of `hf/target.py`, `hf/draft.py` and `hf/rope.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from specgate.checkpoints.auxiliary_layers import capture_keys
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.hf import gpt_oss
from specgate.checkpoints.hf.families import family_keys
from specgate.checkpoints.hf_keys import DRAFT_ARCHITECTURE


def target_config(g: TargetGeometry, dtype: str) -> dict[str, object]:
    """Config keys of a target, of the family that its geometry is of. `dtype` is as torch spells it: "bfloat16"."""
    return {
        **family_keys(g),
        **layer_config(g, dtype),
        "num_hidden_layers": g.layers,
        "tie_word_embeddings": g.tied_embeddings,
        "bos_token_id": g.bos_token_id,
        "eos_token_id": list(g.eos_token_ids) or None,
        **(gpt_oss.config_keys(g) if g.experts else {}),
    }


def draft_config(g: DraftGeometry, boundaries: Sequence[int], dtype: str) -> dict[str, object]:
    """Config keys of an EAGLE-3 draft in the flat layout. The auxiliary layers are written in both conventions."""
    return {
        "architectures": [DRAFT_ARCHITECTURE],
        **draft_layer_config(g, dtype),
        "draft_vocab_size": g.draft_vocab,
        **({"target_hidden_size": g.target_hidden} if g.target_hidden != g.hidden else {}),
        **({"num_aux_hidden_states": g.features} if g.features != 3 else {}),
        **capture_keys(boundaries),
        **{key: True for key, on in switches(g).items() if on},
    }


def draft_layer_config(g: DraftGeometry, dtype: str) -> dict[str, object]:
    """Config keys of the draft's one decoder layer. speculators stores these in a section of their own."""
    return {
        "model_type": "llama",
        **layer_config(g, dtype),
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        **window_keys(g.window),
    }


def switches(g: DraftGeometry) -> dict[str, bool]:
    """The variants of newer drafts. With all of them false, the draft has the layout of the EAGLE authors."""
    return {
        "norm_before_residual": g.norm_before_residual,
        "norm_before_fc": g.norm_before_fc,
        "fc_norm": g.fc_norm,
        "norm_output": g.norm_output,
    }


def layer_config(g: TargetGeometry | DraftGeometry, dtype: str) -> dict[str, object]:
    return {
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
    """RoPE base and scaling in the older spelling, which every engine reads."""
    if rope.kind == "default":
        return {"rope_theta": rope.base}
    scaling: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        optional = {key: getattr(rope, key) for key in ("attention_factor", "mscale", "mscale_all_dim")}
        scaling |= {key: value for key, value in optional.items() if value is not None}
    return {"rope_theta": rope.base, "rope_scaling": scaling}


def window_keys(window: int | None) -> dict[str, object]:
    """The draft's window, written even where there is none: engines differ in what they assume for a missing key."""
    if window is None:
        return {"sliding_window": None, "use_sliding_window": False, "layer_types": ["full_attention"]}
    return {"sliding_window": window, "use_sliding_window": True, "layer_types": ["sliding_attention"]}


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_checkpoint(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and one `model.safetensors` into `folder`, which is made where it is missing."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})

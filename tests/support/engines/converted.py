"""A pair's folders as TurboMind's converters write them, from the Hugging Face folders of a tiny pair."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file

LAYER: Final = "midlayer.self_attn"
GPT_OSS: Final = {
    "hidden_units": 2880, "vocab_size": 201088, "head_num": 64, "size_per_head": 64, "inter_size": 17280,
    "eagle_mode": "eagle3", "eagle_weight_dtype": "bf16", "eagle_base_hidden": 4096, "eagle_draft_hidden": 2880,
    "eagle_q_size": 4096, "eagle_kv_size": 512, "eagle_qkv_in_dim": 5760, "eagle_qkv_in_factor": 2,
    "eagle_fc_in_dim": 8640, "eagle_fc_in_factor": 3, "eagle_capture_layers": [1, 17, 32],
    "eagle_num_capture_layers": 3,
}  # fmt: skip
"""The `model_config` of gpt-oss-120b's draft."""


def write_config(folder: Path, values: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model_config": dict(values)}))


def edit_config(folder: Path, **changes: object) -> None:
    """Change keys of `model_config`; a change to `...` removes the key."""
    values = {**yaml.safe_load((folder / "config.yaml").read_text())["model_config"], **changes}
    write_config(folder, {key: value for key, value in values.items() if value is not ...})


def write_sparse_gpt_oss(folder: Path) -> None:
    """Write gpt-oss-120b's draft in its real sizes. The files are holes: they take no room on disk."""
    write_config(folder, GPT_OSS)
    hidden, vocab, inter, q, kv = 2880, 201088, 17280, 4096, 512
    for name, count in {
        "tok_embeddings": vocab * hidden, "output": vocab * hidden, "norm": hidden, "eagle_fc": 8640 * hidden,
        "fc": 2 * hidden * hidden, "eagle3.q_proj": q * 5760, "eagle3.k_proj": kv * 5760, "eagle3.v_proj": kv * 5760,
        "eagle3.o_proj": hidden * q, "layers.0.attention.w_qkv": 5760 * (q + 2 * kv),
        "layers.0.attention.wo": q * hidden, "layers.0.feed_forward.w1": inter * hidden,
        "layers.0.feed_forward.w2": inter * hidden, "layers.0.feed_forward.w3": inter * hidden,
        "layers.0.attention_norm": hidden, "layers.0.hidden_norm": hidden, "layers.0.ffn_norm": hidden,
    }.items():  # fmt: skip
        (folder / f"{name}.weight").touch()
        os.truncate(folder / f"{name}.weight", 2 * count)


def convert_draft(draft: Path, folder: Path) -> Path:
    """Convert a head in the EAGLE authors' layout, with its own small vocabulary; returns `folder`.

    Weights are cut to bfloat16, so a head of other values than bfloat16's is not converted exactly.
    """
    config = json.loads((draft / "config.json").read_text())
    heads: Mapping[str, NDArray[Any]] = load_file(draft / "model.safetensors")
    q, k, v, o = (heads[f"{LAYER}.{name}_proj.weight"] for name in "qkvo")
    hidden, vocab, drafted = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    write_config(
        folder,
        {
            "hidden_units": hidden, "vocab_size": vocab, "head_num": config["num_attention_heads"],
            "size_per_head": config["head_dim"], "inter_size": config["intermediate_size"], "eagle_mode": "eagle3",
            "eagle_weight_dtype": "bf16", "eagle_draft_hidden": hidden, "eagle_q_size": len(q),
            "eagle_kv_size": len(k), "eagle_qkv_in_dim": 2 * hidden, "eagle_fc_in_dim": 3 * hidden,
            "eagle_capture_layers": [0, 1, 2], "eagle_num_capture_layers": 3, "draft_vocab_size": drafted,
        },
    )  # fmt: skip
    mlp, norms = "midlayer.mlp", "midlayer"
    for name, array in {
        "tok_embeddings": np.ones((vocab, hidden), np.float32), "norm": heads["norm.weight"],
        "eagle_fc": heads["fc.weight"].T, "lm_head_draft": heads["lm_head.weight"].T,
        "layers.0.attention.w_qkv": np.concatenate([q, k, v]).T, "layers.0.attention.wo": o.T,
        "eagle3.q_proj": q, "eagle3.k_proj": k, "eagle3.v_proj": v, "eagle3.o_proj": o,
        "layers.0.feed_forward.w1": heads[f"{mlp}.gate_proj.weight"],
        "layers.0.feed_forward.w3": heads[f"{mlp}.up_proj.weight"],
        "layers.0.feed_forward.w2": heads[f"{mlp}.down_proj.weight"].T,
        "layers.0.attention_norm": heads[f"{norms}.input_layernorm.weight"],
        "layers.0.hidden_norm": heads[f"{norms}.hidden_norm.weight"],
        "layers.0.ffn_norm": heads[f"{norms}.post_attention_layernorm.weight"],
    }.items():  # fmt: skip
        as_bfloat16(array).tofile(folder / f"{name}.weight")
    (heads["d2t"] + np.arange(drafted)).astype("<i4").tofile(folder / "draft_id_to_target_id")
    return folder


def convert_target(target: Path, folder: Path) -> Path:
    """Write what `lmdeploy convert` leaves of a target: its small files, and weights of zeros; returns `folder`."""
    config = json.loads((target / "config.json").read_text())
    folder.mkdir(parents=True)
    for file in target.glob("*.json"):
        shutil.copy(file, folder)
    weights = folder / "triton_models" / "weights"
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    sizes = {"hidden_units": hidden, "vocab_size": config["vocab_size"], "num_layer": layers}
    write_config(weights, {**sizes, "head_num": config["num_attention_heads"], "size_per_head": config["head_dim"]})
    names = [f"layers.{i}.{part}" for i in range(layers) for part in ("attention.w_qkv.0", "ffn_norm")]
    for name in ("tok_embeddings.0", "norm", "output.0", *names):
        np.zeros(hidden, np.float16).tofile(weights / f"{name}.weight")
    return folder


def as_bfloat16(array: NDArray[Any]) -> NDArray[Any]:
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype("<u2")

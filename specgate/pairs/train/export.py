"""A trained draft as a Hugging Face folder in the common EAGLE-3 layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from specgate.backends.eagle3.capture import capture_keys
from specgate.backends.eagle3.geometry import DraftGeometry
from specgate.backends.eagle3.hf_draft import TRAINED_FOR
from specgate.backends.eagle3.pair import TargetCheckpoint
from specgate.pairs.train.draft import TrainableDraft
from specgate.pairs.train.vocab import offsets_and_mask


def export(draft: TrainableDraft, folder: Path, target: TargetCheckpoint, boundaries: tuple[int, ...]) -> None:
    """Write `folder/model.safetensors` (bfloat16, with `d2t` and `t2d`) and `folder/config.json`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in draft.named().items()}
    tensors["d2t"], tensors["t2d"] = (t.cpu() for t in offsets_and_mask(draft.target_ids, draft.geometry.vocab))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    keys = config(draft.geometry, boundaries) | {TRAINED_FOR: {"sha256": target.sha256}}
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")


def config(g: DraftGeometry, boundaries: tuple[int, ...]) -> dict[str, object]:
    """Keys of the common layout; the captured layers in both conventions."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 1,
        "hidden_size": g.hidden,
        "intermediate_size": g.intermediate,
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "hidden_act": "silu",
        "vocab_size": g.vocab,
        "draft_vocab_size": g.draft_vocab,
        "rms_norm_eps": g.rms_eps,
        "rope_theta": g.rope.base,
        "max_position_embeddings": g.max_positions,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        **capture_keys(boundaries),
        **window_keys(g.window),
    }


def window_keys(window: int | None) -> dict[str, object]:
    """Written out either way: engines differ in what they assume where a key is missing."""
    if window is None:
        return {"sliding_window": None, "use_sliding_window": False, "layer_types": ["full_attention"]}
    return {"sliding_window": window, "use_sliding_window": True, "layer_types": ["sliding_attention"]}

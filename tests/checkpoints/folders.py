"""Checkpoint folders for these tests: a tiny random pair, and ways to spoil it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from specgate.checkpoints.hf_keys import Keys

Tensors = dict[str, Tensor]

LLAMA: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
"""A target's config with what every real one has and no more."""

DRAFT: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "draft_vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}
"""The config of a draft of that target, in the layout of the EAGLE authors."""


def keys(base: Mapping[str, object], **changes: object) -> Keys:
    """`base` with `changes`; a change to `...` removes the key."""
    values = {k: v for k, v in {**base, **changes}.items() if v is not ...}
    return Keys(Path("folder/config.json"), values)


def edit_config(folder: Path, **changes: object) -> None:
    """Change keys of `folder/config.json`; a change to `...` removes the key."""
    file = folder / "config.json"
    file.write_text(json.dumps(dict(keys(json.loads(file.read_text()), **changes).values)))


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    """Let `edit` change the dictionary of tensors in `folder/model.safetensors`."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")

"""Tiny gpt-oss checkpoints as transformers writes them, and with their experts in MXFP4 as the published ones have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from specgate.backends.eagle3.lib.weights import decoded, encoded

EXPERTS = ("gate_up_proj", "down_proj")
WINDOW = 8


def config_of(**changes: Any) -> Any:
    from transformers import GptOssConfig

    sizes: dict[str, Any] = {
        "num_hidden_layers": 4,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": WINDOW,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
        "eos_token_id": 257,
        "bos_token_id": 256,
        "pad_token_id": 0,
    }
    return GptOssConfig(**{**sizes, **changes})


def write_gpt_oss(folder: Path, *, seed: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A random checkpoint, every weight of which matters: transformers leaves sinks and biases at zero."""
    from transformers import GptOssForCausalLM

    torch.manual_seed(seed)
    model = GptOssForCausalLM(config_of(**changes)).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 1.0 if name.endswith(("sinks", "router.bias")) else 0.2
            around = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_(around + spread * torch.randn(weight.shape))
    model.save_pretrained(folder)
    return folder


def write_quantised(folder: Path, source: Path) -> Path:
    """`source` with its experts in MXFP4. The numbers are rounded once; `source` is changed to hold them too."""
    tensors = load_file(source / "model.safetensors")
    packed = dict(tensors)
    for name in [n for n in tensors if n.endswith(EXPERTS)]:
        blocks, scales = encoded(tensors[name].transpose(1, 2).contiguous())
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = decoded(blocks, scales, tensors[name].dtype).transpose(1, 2).contiguous()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    folder.mkdir()
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder

"""Dump a target's stages from transformers, for `specgate diagnose parity`.

    python dump_stages_transformers.py TARGET PROMPT OUT.safetensors [DTYPE]

TARGET is a Hugging Face folder. PROMPT is a dump of the other side, whose prompt_ids count, or token ids with commas
between them. DTYPE is float32 (the default), bfloat16 or float16. Needs torch, transformers and safetensors, but not
specgate: the names of the tensors are all that it has to know.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM


def prompt_of(text: str) -> Tensor:
    """int64 [L]."""
    if not text.endswith(".safetensors"):
        return torch.tensor([int(part) for part in text.split(",")])
    with safe_open(text, framework="pt") as other:
        ids: Tensor = other.get_tensor("prompt_ids")
    return ids.long()


def stages_of(model: Any, prompt: Tensor) -> dict[str, Tensor]:
    """The target's stages for `prompt` [L], each [L, width].

    The hidden states are taken from the layers themselves. The last of transformers' own `hidden_states` has been
    through the final norm already, and a draft never sees that.
    """
    kept: dict[str, Tensor] = {}

    def before_first(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        kept["target.hidden.0"] = args[0] if args else named["hidden_states"]

    def after(layer: int) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            kept[f"target.hidden.{layer + 1}"] = output if isinstance(output, Tensor) else output[0]

        return hook

    layers = model.get_decoder().layers
    layers[0].register_forward_pre_hook(before_first, with_kwargs=True)
    for number, layer in enumerate(layers):
        layer.register_forward_hook(after(number))
    with torch.inference_mode():
        kept["target.logits"] = model(prompt[None].to(model.device)).logits
    return {name: tensor[0].cpu().contiguous() for name, tensor in kept.items()}


def main(target: str, prompt: str, out: str, dtype: str = "float32") -> None:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype)).eval()
    ids = prompt_of(prompt)
    save_file({"prompt_ids": ids, **stages_of(model, ids)}, Path(out), metadata={"dtype": dtype})


if __name__ == "__main__":
    main(*sys.argv[1:])

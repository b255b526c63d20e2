"""A draft as forks of LMDeploy's TurboMind load it: `config.yaml` and a raw file per weight."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.pair_tools.export.opened import OpenPair, dtype_name, target_tensors
from specgate.backends.eagle3.pair_tools.export.opened import draft_tensors as head_tensors
from specgate.checkpoints.turbomind import CAPTURED, CONFIG, IDS, SECTION, TENSORS
from specgate.errors import UsageError
from specgate.files.yamlfile import dump_yaml

FLOATS: Final = {"bfloat16": "bf16", "float16": "fp16"}
"""Type of the weights → `eagle_weight_dtype`."""


def write_draft(folder: Path, pair: OpenPair, dtype: torch.dtype | None) -> None:
    """Write the draft. A small vocabulary becomes `lm_head_draft.weight` and the target ids of its tokens.

    Raises UsageError for a draft that TurboMind would compute in another way.
    """
    g, tensors = pair.draft.geometry, head_tensors(pair, dtype)
    refuse_inexpressible(pair, dtype_name(tensors))
    folder.mkdir()
    small = g.draft_vocab < g.vocab
    q, kv = g.heads * g.head_dim, g.kv_heads * g.head_dim
    captured = [boundary - 1 for boundary in pair.draft.capture.boundaries]
    config = {
        "hidden_units": g.target_hidden,
        "vocab_size": g.vocab,
        "head_num": g.heads,
        "size_per_head": g.head_dim,
        "inter_size": g.intermediate,
        "eagle_mode": "eagle3",
        "eagle_weight_dtype": FLOATS[dtype_name(tensors)],
        "eagle_base_hidden": q,
        "eagle_draft_hidden": g.hidden,
        "eagle_q_size": q,
        "eagle_kv_size": kv,
        "eagle_qkv_in_dim": 2 * g.hidden,
        "eagle_qkv_in_factor": 2,
        "eagle_fc_in_dim": g.features * g.target_hidden,
        "eagle_fc_in_factor": g.features,
        CAPTURED: captured,
        "eagle_num_capture_layers": len(captured),
        **({"draft_vocab_size": g.draft_vocab} if small else {}),
    }
    (folder / CONFIG).write_text(dump_yaml({SECTION: config}), encoding="utf-8")

    def read(name: str) -> Tensor:
        return tensors[name].read()

    own = "embed_tokens.weight" in tensors
    embedding = tensors["embed_tokens.weight"] if own else target_tensors(pair, dtype)["model.embed_tokens.weight"]
    together = {
        "tok_embeddings.weight": lambda: embedding.read(),
        "layers.0.attention.w_qkv.weight": lambda: (
            torch.cat([read(f"midlayer.self_attn.{name}_proj.weight") for name in "qkv"]).T
        ),
        "layers.0.attention.wo.weight": lambda: read("midlayer.self_attn.o_proj.weight").T,
        "output.weight": lambda: read("lm_head.weight").T,
        IDS: lambda: (read("d2t") + torch.arange(g.draft_vocab)).int(),
    }
    for name, raw in TENSORS.items():
        if not raw.needed or name in (["output.weight"] if small else ["lm_head_draft.weight", IDS]):
            continue
        tensor = read(raw.of) if raw.of else together[name]()
        write_raw(folder / name, tensor.T if raw.turned else tensor)


def write_raw(file: Path, tensor: Tensor) -> None:
    """Write the elements of `tensor`, row by row, and nothing else."""
    tensor.contiguous().view(torch.int16 if tensor.itemsize == 2 else tensor.dtype).numpy().tofile(file)


def refuse_inexpressible(pair: OpenPair, dtype: str) -> None:
    """Raise UsageError for what TurboMind would refuse, or would silently compute in another way."""
    g = pair.draft.geometry
    lacking = {
        "fc_norm": g.fc_norm,
        "norm_before_fc": g.norm_before_fc,
        "norm_output": g.norm_output,
        "norm_before_residual": g.norm_before_residual,
        "the embedding among its captured layers": 0 in pair.draft.capture.boundaries,
        f"drafts of width {g.hidden} with the embedding of a target of width {g.target_hidden}": g.hidden
        != g.target_hidden,
    }
    if any(lacking.values()):
        what = ", no ".join(name for name, there in lacking.items() if there)
        raise UsageError(f"{pair.draft.config.file.parent}: TurboMind has no {what}", hint="use --format hf")
    if dtype not in FLOATS:
        raise UsageError(f"the draft's weights are {dtype}: TurboMind's have 16 bits", hint="add --dtype bfloat16")

"""Load a target and its draft: translated config, checked tensors under canonical names, content hash.

Canonical names are Hugging Face's for the target and the EAGLE authors' for the draft (`fc`, `midlayer.*`, `norm`,
`lm_head`, `embed_tokens`, `input_norm`, `fc_norm.i`, each with `.weight`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.capture import Capture
from specgate.backends.eagle3.checkpoint import TensorFiles, Wanted, check_tensors
from specgate.backends.eagle3.d2t import check_d2t
from specgate.backends.eagle3.geometry import DraftGeometry, TargetGeometry
from specgate.backends.eagle3.hf_draft import TRAINED_FOR, canonical, draft_geometry
from specgate.backends.eagle3.hf_keys import Keys, read_config, read_json
from specgate.backends.eagle3.hf_target import target_geometry, with_generation_eos
from specgate.errors import CheckpointError

RECOMPUTED: Final = r"(.+\.)?rotary_emb\.inv_freq"
"""Buffers that old checkpoints store and every engine computes anew."""


@dataclass(frozen=True, slots=True)
class TargetCheckpoint:
    """`tensors` in the dtype and on the device asked for; without `lm_head.weight` where it is tied."""

    geometry: TargetGeometry
    tensors: dict[str, Tensor]
    sha256: str
    config_file: Path


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """`tensors` without `embed_tokens.weight` and `lm_head.weight` where the draft uses the target's.

    `d2t` (int64 [W], offsets) is None where draft and target vocabulary are the same.
    """

    geometry: DraftGeometry
    tensors: dict[str, Tensor]
    d2t: Tensor | None
    capture: Capture
    sha256: str
    warnings: tuple[str, ...]


def load_target(
    folder: Path, dtype: torch.dtype, device: torch.device | str, rope: Mapping[str, float | str] | None = None
) -> TargetCheckpoint:
    """Load a Llama-family target; `rope` (Hugging Face keys) replaces its scaling, base and original length staying.

    Raises CheckpointError, which names file, key or tensor, value, and what would be right.
    """
    config = read_config(folder)
    geometry = target_geometry(config, rope)
    hashed = [config.file]
    if (generation := folder / "generation_config.json").is_file():
        geometry = with_generation_eos(geometry, read_json(generation))
        hashed.append(generation)
    files = TensorFiles(folder)
    wanted = target_tensors(geometry)
    other = f"{RECOMPUTED}|lm_head.weight" if geometry.tied_embeddings else RECOMPUTED
    check_tensors(files.entries, wanted, other, folder)
    if geometry.tied_embeddings and "lm_head.weight" in files.entries:
        refuse_untied(files, config)
    tensors = {name: files.read(name).to(device=device, dtype=dtype) for name in wanted}
    return TargetCheckpoint(geometry, tensors, files.sha256(*hashed), config.file)


def load_draft(
    folder: Path,
    target: TargetGeometry,
    dtype: torch.dtype,
    device: torch.device | str,
    capture_override: Sequence[int] | None = None,
    target_sha256: str | None = None,
) -> DraftCheckpoint:
    """Load the EAGLE-3 draft of `target`; `capture_override` gives boundaries in place of the config's rule.

    `target_sha256` is compared with the one that the draft's config names, if it names one: a difference is a warning.
    Raises CheckpointError, which names file, key or tensor, value, and what would be right.
    """
    config = read_config(folder)
    files = TensorFiles(folder)
    source = canonical_names(files)
    geometry, capture = draft_geometry(config, target, source, capture_override)
    wanted = draft_tensors(geometry, "d2t" in source, "t2d" in source)
    check_tensors({name: files.entries[source[name]] for name in source}, wanted, RECOMPUTED, folder)
    read = {name: files.read(source[name]) for name in wanted}
    d2t, t2d = read.pop("d2t", None), read.pop("t2d", None)
    warnings = position_warnings(geometry, target) + target_warnings(config, target_sha256)
    if d2t is not None:
        warnings += check_d2t(d2t, t2d, target.vocab, str(folder))
        d2t = d2t.to(device)
    tensors = {name: tensor.to(device=device, dtype=dtype) for name, tensor in read.items()}
    return DraftCheckpoint(geometry, tensors, d2t, capture, files.sha256(config.file), warnings)


def target_tensors(g: TargetGeometry) -> dict[str, Wanted]:
    """Every tensor of the target with its shape."""
    wanted = {"model.embed_tokens.weight": Wanted((g.vocab, g.hidden)), "model.norm.weight": Wanted((g.hidden,))}
    if not g.tied_embeddings:
        wanted["lm_head.weight"] = Wanted((g.vocab, g.hidden))
    for i in range(g.layers):
        wanted |= layer_tensors(f"model.layers.{i}.", g, g.hidden)
    return wanted


def draft_tensors(g: DraftGeometry, has_d2t: bool, has_t2d: bool) -> dict[str, Wanted]:
    """Every tensor of the draft with its shape; `d2t` is needed where the vocabulary is reduced, `t2d` never."""
    width = g.features * g.target_hidden
    streams = f"{g.features} captured streams of the target's hidden size {g.target_hidden}"
    wanted = {"fc.weight": Wanted((g.hidden, width), streams), "norm.weight": Wanted((g.hidden,))}
    wanted |= layer_tensors("midlayer.", g, 2 * g.hidden, "the attention input is [embedding, feature]")
    wanted["midlayer.hidden_norm.weight"] = Wanted((g.hidden,))
    if g.norm_before_fc:
        wanted["input_norm.weight"] = Wanted((width,), streams)
    if g.fc_norm:
        wanted |= {f"fc_norm.{i}.weight": Wanted((g.target_hidden,), streams) for i in range(g.features)}
    if g.own_embedding:
        wanted["embed_tokens.weight"] = Wanted((g.vocab, g.hidden), "one row per target token")
    if g.own_lm_head:
        wanted["lm_head.weight"] = Wanted((g.draft_vocab, g.hidden), f"draft_vocab_size {g.draft_vocab} rows")
    if has_d2t or g.draft_vocab != g.vocab:
        wanted["d2t"] = Wanted((g.draft_vocab,), "one offset per row of lm_head.weight", "I64")
    if has_t2d:
        wanted["t2d"] = Wanted((g.vocab,), "one mark per target token", "BOOL")
    return wanted


def layer_tensors(
    prefix: str, g: TargetGeometry | DraftGeometry, attention_input: int, meaning: str = ""
) -> dict[str, Wanted]:
    """One decoder layer whose query, key and value projections read rows of width `attention_input`."""
    norm, up = Wanted((g.hidden,)), Wanted((g.intermediate, g.hidden))
    q, kv = (Wanted((n * g.head_dim, attention_input), meaning) for n in (g.heads, g.kv_heads))
    parts = {
        "input_layernorm": norm,
        "self_attn.q_proj": q,
        "self_attn.k_proj": kv,
        "self_attn.v_proj": kv,
        "self_attn.o_proj": Wanted((g.hidden, g.heads * g.head_dim)),
        "post_attention_layernorm": norm,
        "mlp.gate_proj": up,
        "mlp.up_proj": up,
        "mlp.down_proj": Wanted((g.hidden, g.intermediate)),
    }
    return {f"{prefix}{name}.weight": want for name, want in parts.items()}


def refuse_untied(files: TensorFiles, config: Keys) -> None:
    """A tied checkpoint may repeat its embedding as `lm_head.weight`, but not hold another matrix there."""
    if not torch.equal(files.read("lm_head.weight"), files.read("model.embed_tokens.weight")):
        raise config.wrong("tie_word_embeddings", "lm_head.weight differs from the embedding: false would be right")


def canonical_names(files: TensorFiles) -> dict[str, str]:
    """Canonical name → name in the files."""
    source: dict[str, str] = {}
    for name in files.entries:
        if (known := source.setdefault(canonical(name), name)) != name:
            raise CheckpointError(f"{files.folder}: tensors {known} and {name} are the same weight", hint="keep one")
    return source


def position_warnings(draft: DraftGeometry, target: TargetGeometry) -> tuple[str, ...]:
    if draft.window is not None or draft.max_positions >= target.max_positions:
        return ()
    return (
        f"the draft is made for {draft.max_positions} positions, the target for {target.max_positions}: acceptance "
        f"beyond {draft.max_positions} is likely to fall",
    )


def target_warnings(config: Keys, target_sha256: str | None) -> tuple[str, ...]:
    named = config.part(TRAINED_FOR).text("sha256")
    if target_sha256 is None or named in (None, target_sha256):
        return ()
    return (f"the draft names another target: {TRAINED_FOR}.sha256 = {named}, this target's is {target_sha256}",)

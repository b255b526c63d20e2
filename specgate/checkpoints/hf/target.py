"""Translate a target's Hugging Face config into `TargetGeometry`, or refuse it and say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf import gpt_oss
from specgate.checkpoints.hf.families import family_of
from specgate.checkpoints.hf.rope import override, rope_of
from specgate.checkpoints.hf_keys import Keys
from specgate.errors import CheckpointError

MOST_LAYERS: Final = 4096
"""Their tensors are listed one by one before any file is compared with them."""


def target_geometry(config: Keys, rope: Mapping[str, float | str] | None = None) -> TargetGeometry:
    """Sizes and switches of the target. `rope` (Hugging Face keys) replaces the config's RoPE scaling.

    Raises CheckpointError for a config that is incomplete, contradictory or of an unsupported model.
    """
    family = family_of(config)
    heads, kv_heads, head_dim = attention_sizes(config, family.head_dim)
    spec, positions = rope_of(config, head_dim, family.base)
    if rope is not None:
        spec, positions = override(spec, positions, Keys(config.file, rope, "rope override"))
    if config.count("num_hidden_layers") > MOST_LAYERS:
        raise config.wrong("num_hidden_layers", f"at most {MOST_LAYERS} layers")
    layers = config.count("num_hidden_layers")
    return TargetGeometry(
        layers=layers,
        hidden=config.count("hidden_size"),
        intermediate=config.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config.count("vocab_size"),
        rms_eps=config.number("rms_norm_eps"),
        rope=spec,
        max_positions=positions,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        eos_token_ids=token_ids(config, "eos_token_id"),
        bos_token_id=next(iter(token_ids(config, "bos_token_id")), None),
        head_norms=family.head_norms,
        experts=gpt_oss.experts_of(config) if family.experts else None,
        windows=gpt_oss.windows_of(config, layers) if family.experts else (),
        biases=family.experts,
        sinks=family.experts,
    )


def require_dense(geometry: TargetGeometry, config_file: Path, who: str) -> None:
    """Raise CheckpointError for a target with experts, where `who` can only do with a dense one."""
    if geometry.experts is not None:
        raise CheckpointError(
            f"{config_file}: num_local_experts = {geometry.experts.count}: {who} knows dense targets only",
            hint="back ends reference and cupy decode gpt-oss",
        )


def with_generation_eos(geometry: TargetGeometry, generation: Keys) -> TargetGeometry:
    """Add the end-of-sequence ids of `generation_config.json`: `generate` and the serving engines stop at these."""
    extra = generation.ids("eos_token_id")
    if any(i >= geometry.vocab for i in extra):
        raise generation.wrong("eos_token_id", f"token ids must be below the vocabulary of {geometry.vocab}")
    return replace(geometry, eos_token_ids=tuple(dict.fromkeys(geometry.eos_token_ids + extra)))


def attention_sizes(config: Keys, usual_dim: int | None = None) -> tuple[int, int, int]:
    """(query heads, key/value heads, head size). Where the config states none, the head size is `usual_dim`, if there
    is one, else hidden / heads.
    """
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"must divide num_attention_heads = {heads}")
    if "head_dim" not in config and usual_dim is None and hidden % heads:
        raise config.wrong("head_dim", f"needed, because {heads} heads do not divide hidden_size = {hidden}")
    head_dim = config.count("head_dim", usual_dim or hidden // heads)
    if head_dim % 2:
        raise config.wrong("head_dim", "must be even for rotary embedding")
    return heads, kv_heads, head_dim


def token_ids(config: Keys, key: str) -> tuple[int, ...]:
    """The token ids below `key`, all inside the vocabulary."""
    ids, vocab = config.ids(key), config.count("vocab_size")
    if any(i >= vocab for i in ids):
        raise config.wrong(key, f"token ids must be below vocab_size = {vocab}")
    return ids

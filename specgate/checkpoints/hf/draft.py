"""Translate an EAGLE-3 draft's Hugging Face config into `DraftGeometry`, or refuse it and say why.

EAGLE, SpecForge and ModelOpt write one flat config. speculators nests the keys of the decoder layer under
`transformer_layer_config`. The draft's RoPE is read from the draft's own config and never taken from the target: drafts
are trained with their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, resolve_boundaries
from specgate.checkpoints.geometry import DraftGeometry, TargetSizes
from specgate.checkpoints.hf.related_architectures import refuse_related
from specgate.checkpoints.hf.rope import kind_of, rope_of
from specgate.checkpoints.hf.target import attention_sizes
from specgate.checkpoints.hf_keys import Keys
from specgate.errors import CheckpointError, UnsupportedDraft

TRAINED_FOR: Final = "trained_for"


@dataclass(frozen=True, slots=True)
class DraftKeys:
    """Places of keys: `head` for keys of the draft as a whole, `layer` for those of its decoder layer."""

    head: Keys
    layer: Keys
    speculators: bool

    @classmethod
    def of(cls, config: Keys) -> DraftKeys:
        if "speculators_model_type" not in config:
            return cls(config, config, False)
        config.refuse("speculators_model_type", "eagle3", "only eagle3 drafts are supported")
        return cls(config, config.part("transformer_layer_config"), True)

    def switch(self, key: str) -> bool:
        """A flag at the top level or under `eagle_config`; false where neither has it. Raises CheckpointError if they
        differ.
        """
        nested = self.head.part("eagle_config")
        if key in self.head and key in nested and self.head.values[key] != nested.values[key]:
            raise nested.wrong(key, f"the top level says {self.head.values[key]}: keep one of the two")
        return self.head.flag(key, nested.flag(key, False))


def draft_geometry(
    config: Keys,
    target: TargetSizes,
    tensors: Collection[str],
    capture_override: Sequence[int] | None = None,
    features: int | None = None,
) -> tuple[DraftGeometry, AuxiliaryLayers]:
    """Sizes and switches of a draft of `target`, and the auxiliary hidden-state layers that it reads.

    `tensors` are the canonical names in its weight files. They tell whether the draft has its own embedding and LM
    head. `capture_override` replaces the boundaries that follow from the config. `features`: how many hidden states
    its `fc` takes, where that is known.

    Raises OtherTarget, and UnsupportedDraft, with the reason, for variants that are not supported; CheckpointError for
    a config that is incomplete or contradicts itself.
    """
    keys = DraftKeys.of(config)
    try:
        refuse_unsupported(keys)
        for key in ("rope_scaling", "rope_parameters"):
            kind_of(keys.layer.part(key))
    except CheckpointError as error:
        raise UnsupportedDraft(error.message, hint=error.hint) from error
    refuse_ambiguous_norms(keys)
    refuse_other_target(keys, target)
    capture = resolve_boundaries(config, target.layers, capture_override, features)
    counted, features = features, len(capture.boundaries)
    if counted is None and keys.head.count("num_aux_hidden_states", features) != features:
        raise keys.head.wrong("num_aux_hidden_states", f"must be the number of captured layers ({capture.rule})")
    hidden = keys.layer.count("hidden_size")
    heads, kv_heads, head_dim = attention_sizes(keys.layer)
    rope, positions = rope_of(keys.layer, head_dim)
    draft_vocab = keys.head.count("draft_vocab_size", target.vocab)
    own_lm_head = "lm_head.weight" in tensors or draft_vocab != target.vocab or hidden != target.hidden
    if not own_lm_head:
        keys.layer.refuse("tie_word_embeddings", False, "a draft without an lm_head.weight uses the target's")
    geometry = DraftGeometry(
        hidden=hidden,
        target_hidden=target.hidden,
        features=features,
        intermediate=keys.layer.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=target.vocab,
        draft_vocab=draft_vocab,
        rms_eps=keys.layer.number("rms_norm_eps"),
        rope=rope,
        max_positions=positions,
        window=window_of(keys.layer),
        own_embedding="embed_tokens.weight" in tensors or hidden != target.hidden,
        own_lm_head=own_lm_head,
        fc_norm=keys.switch("fc_norm") or keys.switch("use_aux_norm"),
        norm_before_fc=keys.switch("norm_before_fc"),
        norm_output=keys.switch("norm_output"),
        norm_before_residual=keys.switch("norm_before_residual"),
    )
    return geometry, capture


def refuse_ambiguous_norms(keys: DraftKeys) -> None:
    """Raise CheckpointError where the config leaves open which of the norms the draft has."""
    if keys.speculators and "norm_before_residual" not in keys.head:
        reason = "write it down: missing, speculators means false and vLLM true"
        raise keys.head.wrong("norm_before_residual", reason)
    if keys.switch("norm_before_fc") and (keys.switch("fc_norm") or keys.switch("use_aux_norm")):
        raise keys.head.wrong("norm_before_fc", "fc_norm is set too: a draft norms its input one way or the other")


def refuse_unsupported(keys: DraftKeys) -> None:
    """Raise CheckpointError for a draft whose arithmetic the engines do not implement."""
    head, layer, nested = keys.head, keys.layer, keys.head.part("eagle_config")
    layer.refuse("hidden_act", "silu", "only SwiGLU is supported: silu")
    layer.refuse("attention_bias", False, "projections with a bias are not supported")
    layer.refuse("mlp_bias", False, "projections with a bias are not supported")
    head.refuse("logit_scale", 1.0, "scaled draft logits are not supported")
    head.refuse("quantization_config", None, "only unquantised weights are supported")
    for section in (head, nested):
        section.refuse("use_aux_hidden_state", True, "drafts over the final hidden state alone are not supported")
        section.refuse("parallel_drafting", False, "parallel drafting is not supported")
    nested.refuse("parallel_draft_step", 1, "parallel drafting is not supported")
    nested.refuse("use_input_layernorm_in_first_layer", True, "drafts that do not norm the embedding are not supported")
    nested.refuse("use_last_layernorm", True, "drafts without a norm before lm_head are not supported")
    nested.refuse("use_mtp_layernorm", False, "multi-token-prediction norms are not supported")
    for section in (head, layer, nested):
        refuse_related(section)


class OtherTarget(CheckpointError):
    """A draft that was made for another target."""


def refuse_other_target(keys: DraftKeys, target: TargetSizes) -> None:
    """Raise OtherTarget where the draft was made for another target; the message lists everything that differs."""
    head, layer, note = keys.head, keys.layer, keys.head.part(TRAINED_FOR)
    hidden_key = "target_hidden_size" if "target_hidden_size" in head else "hidden_size"
    stated = {
        hidden_key: (head if hidden_key == "target_hidden_size" else layer).count(hidden_key),
        "vocab_size": layer.count("vocab_size", target.vocab),
        note.path("num_hidden_layers"): note.count("num_hidden_layers", target.layers),
    }
    is_so = (target.hidden, target.vocab, target.layers)
    differing = [f"{k} = {v}, the target has {t}" for (k, v), t in zip(stated.items(), is_so, strict=True) if v != t]
    if differing:
        name = named_target(keys)
        made_for = f" (its config names {name})" if name else ""
        raise OtherTarget(
            f"{head.file}: this is the draft of another target{made_for}: {'; '.join(differing)}",
            hint="a draft works only with the target that it was trained for",
        )


def named_target(keys: DraftKeys) -> str | None:
    """The name that the config gives to its target, if any."""
    verifier = keys.head.part("speculators_config").part("verifier")
    return keys.head.part(TRAINED_FOR).text("name") or verifier.text("name_or_path")


def trained_for_keys(name: str, target: TargetSizes, sha256: str) -> Mapping[str, object]:
    """The section of a draft's config that identifies its target: name, number of layers, SHA-256. Other engines ignore
    it.
    """
    return {TRAINED_FOR: {"name": name, "num_hidden_layers": target.layers, "sha256": sha256}}


def window_of(layer: Keys) -> int | None:
    """Positions that the draft's attention sees, the query's own included; None means all of them."""
    types = layer.values.get("layer_types")
    kinds = {*map(str, types)} if isinstance(types, list) else {str(types)}
    if types is not None and kinds not in ({"full_attention"}, {"sliding_attention"}):
        raise layer.wrong("layer_types", "one of full_attention and sliding_attention, for the one layer")
    by_type = None if types is None else kinds == {"sliding_attention"}
    by_flag = layer.flag("use_sliding_window", False) if "use_sliding_window" in layer else None
    if by_type is not None and by_flag is not None and by_type != by_flag:
        raise layer.wrong("use_sliding_window", f"layer_types = {types} says otherwise")
    windowed = by_type if by_flag is None else by_flag
    if windowed is None and "sliding_window" in layer:
        raise layer.wrong("sliding_window", "say by layer_types or use_sliding_window whether it is in use")
    return layer.count("sliding_window") if windowed else None

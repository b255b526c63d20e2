"""Keys of related architectures that would change the arithmetic of a Llama decoder.

Families that grew out of Llama (Granite, Gemma, Cohere, MiniCPM, OLMo, SmolLM3, Mixtral, …) scale, cap, rotate or route
where Llama does not. Converted checkpoints often keep such keys under Llama's name. Some engines obey them, others do
not, and `transformers` ignores them in its Llama class: what such a checkpoint means is unclear, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.hf_keys import Keys

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    # scales
    "residual_multiplier": (1.0,),
    "attention_multiplier": (),
    "embedding_multiplier": (1.0,),
    "mlp_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "lm_head_multiplier": (1.0,),
    "query_pre_attn_scalar": (),
    "attention_scale": (),
    "scale_attn_weights": (True,),
    "scale_emb": (1.0,),
    "scale_depth": (),
    "normalize_embedding": (False,),
    # caps
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attn_logit_softcap": (),
    "final_logit_softcap": (),
    "logits_soft_cap": (),
    "logit_softcapping": (),
    "clip_qkv": (),
    # rotation
    "rope_interleaved": (False,),
    "rope_interleave": (False,),
    "use_rope": (True,),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (),
    "rope_pct": (1.0,),
    "rotary_pct": (1.0,),
    "rope_local_base_freq": (),
    "alibi": (False,),
    "position_embedding_type": ("rope", "rotary", "rotary_embedding"),
    # attention
    "attention_out_bias": (False,),
    "qkv_bias": (False,),
    "use_qkv_bias": (False,),
    "use_bias": (False,),
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "qk_layernorm": (False,),
    "attn_temperature_tuning": (False,),
    "attention_chunk_size": (),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    # the layer as a whole
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "norm_after": (False,),
    "use_post_norm": (False,),
    "hidden_activation": ("silu",),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "n_routed_experts": (0,),
}
"""Key → the values that leave Llama's arithmetic as it is. null, like an absent key, always does."""


def refuse_related(config: Keys, known: Sequence[str] = ()) -> None:
    """Raise CheckpointError for a key of a related architecture that changes the arithmetic. `known`: keys that the
    architecture itself has.
    """
    for key, neutral in NEUTRAL.items():
        if key in config and key not in known and config.values[key] not in neutral:
            allowed = " or ".join([*(str(value).lower() for value in neutral), "null"])
            raise config.wrong(key, f"it would change Llama's arithmetic, and engines disagree on it: only {allowed}")

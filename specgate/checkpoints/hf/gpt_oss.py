"""Keys that the config of a gpt-oss target has beyond a Llama's: experts, sinks, windows, biases.

Keys and defaults are those of transformers' `GptOssConfig`, in the older spelling of the published checkpoints too.
"""

from __future__ import annotations

from typing import Final

from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from specgate.checkpoints.hf_keys import Keys
from specgate.checkpoints.mxfp4 import BLOCK

KINDS: Final = ("sliding_attention", "full_attention")
"""Of its layers, which take turns."""
QUANTISED: Final = "mxfp4"
KEPT: Final = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
"""Modules that the published checkpoints name as not quantised."""


def experts_of(config: Keys) -> ExpertGeometry:
    """The mixture of experts. Raises CheckpointError."""
    section = config.part("quantization_config")
    mxfp4 = section.text("quant_method") == QUANTISED
    if section.values and not mxfp4:
        raise section.wrong("quant_method", f"experts in {QUANTISED}, or weights that are not quantised")
    for key in ("hidden_size", "intermediate_size") if mxfp4 else ():
        if config.count(key) % BLOCK:
            raise config.wrong(key, f"MXFP4 has blocks of {BLOCK}: a multiple of that is needed")
    count = config.count("num_local_experts")
    key = "num_experts_per_tok" if "num_experts_per_tok" in config else "experts_per_token"
    if (per_token := config.count(key)) > count:
        raise config.wrong(key, f"at most num_local_experts = {count}")
    defaults = ExpertGeometry(count, per_token, mxfp4)
    alpha, limit = config.number("swiglu_alpha", defaults.alpha), config.number("swiglu_limit", defaults.limit)
    return ExpertGeometry(count, per_token, mxfp4, alpha, limit)


def windows_of(config: Keys, layers: int) -> tuple[int | None, ...]:
    """For every layer, how many positions it sees; None: all. Raises CheckpointError."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        kinds = [KINDS[i % 2] for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in KINDS for kind in kinds):
        raise config.wrong("layer_types", f"a list of num_hidden_layers = {layers} of {' and '.join(KINDS)}")
    if KINDS[0] not in kinds:
        return (None,) * layers
    window = config.count("sliding_window")
    return tuple(window if kind == KINDS[0] else None for kind in kinds)


def config_keys(g: TargetGeometry) -> dict[str, object]:
    """Keys that the config of a target with experts has in addition to `hf.write.target_config`, or with other
    values.
    """
    assert g.experts is not None
    return {
        "attention_bias": g.biases,
        "num_local_experts": g.experts.count,
        "num_experts_per_tok": g.experts.per_token,
        "experts_per_token": g.experts.per_token,
        "swiglu_alpha": g.experts.alpha,
        "swiglu_limit": g.experts.limit,
        "layer_types": [KINDS[g.window(layer) is None] for layer in range(g.layers)],
        "sliding_window": next((w for w in g.windows if w), None),
        **({"quantization_config": quantised_keys()} if g.experts.mxfp4 else {}),
    }


def quantised_keys() -> dict[str, object]:
    return {"quant_method": QUANTISED, "modules_to_not_convert": list(KEPT)}

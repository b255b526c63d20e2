"""The families of targets that specgate's own engines compute: one declaration each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.related_architectures import refuse_related
from specgate.checkpoints.hf.rope import DEFAULT_BASE
from specgate.checkpoints.hf_keys import Keys

Required = Mapping[str, tuple[object, str]]
"""Key → the one value that it may have where it is present, and the reason."""


@dataclass(frozen=True, slots=True)
class Family:
    """Targets of one architecture, as `config.json` names it.

    `base` and `head_dim` hold where the config states none; `head_dim` None: hidden size / heads. `experts`: there is a
    mixture in every layer, with biases, sinks and windows, as gpt-oss has it. `head_norms`: as `TargetGeometry` has it.
    """

    architecture: str
    model_type: str
    required: Required
    base: float = DEFAULT_BASE
    head_dim: int | None = None
    head_norms: bool = False
    experts: bool = False


NO_BIAS: Final = (False, "projections with a bias are not supported")
DENSE: Final[Required] = {
    "hidden_act": ("silu", "only the SwiGLU of the Llama family is supported: silu"),
    "attention_bias": NO_BIAS,
    "mlp_bias": NO_BIAS,
    "quantization_config": (None, "only unquantised weights are supported"),
}
"""Pre-norm, rotary attention over grouped heads, SwiGLU, no biases."""
NO_WINDOW: Final = "a sliding window in the target is not supported"
FAMILIES: Final = (
    Family("LlamaForCausalLM", "llama", DENSE),
    Family("MistralForCausalLM", "mistral", {**DENSE, "sliding_window": (None, NO_WINDOW)}),
    Family(
        "Qwen3ForCausalLM", "qwen3", {**DENSE, "use_sliding_window": (False, NO_WINDOW)}, head_dim=128, head_norms=True
    ),
    Family(
        "GptOssForCausalLM",
        "gpt_oss",
        {
            "hidden_act": ("silu", "gpt-oss has a clamped SwiGLU: silu"),
            "attention_bias": (True, "gpt-oss has biases in its attention: true"),
            "tie_word_embeddings": (False, "gpt-oss has an LM head of its own: false"),
        },
        base=150000.0,
        experts=True,
    ),
)
"""The first that fits a geometry is the one that is written."""
ELSEWHERE: Final[Mapping[str, str]] = {
    "Qwen3MoeForCausalLM": "Qwen3-MoE runs with --backend vllm, sglang or transformers",
    **dict.fromkeys(
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        "Qwen3-VL runs with --backend vllm or sglang",
    ),
}
"""Architecture → the back ends that run it."""


def family_of(config: Keys) -> Family:
    """The family that `config` names. Raises CheckpointError for another one, and for keys with another arithmetic."""
    names = config.values.get("architectures")
    family = next((family for family in FAMILIES if names == [family.architecture]), None)
    if family is None:
        known = ", ".join(family.architecture for family in FAMILIES)
        named = (
            [ELSEWHERE[n] for n in names if isinstance(n, str) and n in ELSEWHERE] if isinstance(names, list) else []
        )
        others = named[0] if named else "others run with --backend transformers"
        raise config.wrong("architectures", f"supported targets: {known}; {others}")
    if config.text("model_type") not in (None, family.model_type):
        raise config.wrong("model_type", f"for {family.architecture}: {family.model_type}")
    refuse_related(config, known=("num_local_experts", "num_experts") if family.experts else ())
    for key, (value, reason) in family.required.items():
        config.refuse(key, value, reason)
    types = config.values.get("layer_types")
    if not family.experts and isinstance(types, list) and any(kind != "full_attention" for kind in types):
        raise config.wrong("layer_types", "a target of full_attention layers is needed")
    return family


def family_keys(g: TargetGeometry) -> dict[str, object]:
    """Keys of a config that name the family of `g`."""
    family = next(f for f in FAMILIES if (f.head_norms, f.experts) == (g.head_norms, g.experts is not None))
    return {"architectures": [family.architecture], "model_type": family.model_type}

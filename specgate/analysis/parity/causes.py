"""Usual causes of a departure by the stage where it is first seen, and differences of the maps of draft ids.

Engines differ in conventions more often than in arithmetic. `usual_causes` lists them by stage; they were read in the
engines' sources and issues: vLLM 0.25.1 `model_executor/models/llama_eagle3.py`, SGLang 0.5.17
`srt/models/llama_eagle3.py`, SafeAILab/EAGLE `eagle/model/cnets.py`, sgl-project/sglang#25454, vllm-project/vllm#14649.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from specgate.checkpoints.stages.dump import StageDump
from specgate.checkpoints.stages.names import boundary_of

LAYER: Final = (
    "other weights: another revision, a quantised copy, or a shard that was not loaded",
    "the target's RoPE: base, scaling, or cos and sin rounded early",
    "RMSNorm: eps, or its weight multiplied in another dtype",
    "attention: a window, sinks or a soft cap that one side leaves out",
)
CAUSES: Final[dict[str, tuple[str, ...]]] = {
    "target.logits": (
        "the final norm left out, or applied twice",
        "the LM head: tied to the embedding on one side only, scaled, capped or padded",
    ),
    "draft.features": (
        "other layers are captured: ids that mean a layer's output on one side and its input on the other",
        "their order: the lowest layer comes first",
        "what is captured: the stream with the residual added, not the branch alone",
    ),
    "draft.fc_out": (
        "the order of the captured layers in the columns of fc",
        "other layers are captured, where draft.features was not compared",
        "fc_norm or norm_before_fc on one side only",
        "taken after hidden_norm: some engines dump fc's output normed",
    ),
    "draft.attn_out": (
        "RoPE of the draft: its own config counts, not the target's; the default base is 10000",
        "positions: row p has position p, although its token is x(p + 1)",
        "the order in the concatenation: embedding first, then hidden state",
        "the norms: input_layernorm is for the embedding, hidden_norm for the hidden state",
        "another embedding than the target's, or tokens that are not shifted by one",
        "a sliding window on one side only",
        "taken with the residual added, or before o_proj",
    ),
    "draft.ffn_out": (
        "the residual: the raw fc output, or the normed one with norm_before_residual",
        "post_attention_layernorm left out, or applied before the residual is added",
        "the order of gate and up, or the activation",
        "taken with the residual added",
    ),
    "draft.pre_head_hidden": (
        "the final norm left out, applied twice, or with another weight or eps",
        "the second residual left out",
        "taken before the final norm",
    ),
    "draft.logits": (
        "the LM head: the target's in the place of the draft's own, or the other way round",
        "logit_scale, a soft cap, or rows of another draft vocabulary",
    ),
    "step.hidden": (
        "the hidden state that is handed on: before the final norm, or after it with norm_output",
        "the row that it is taken from: the last accepted one",
    ),
    "step.attn_out": (
        "the step's position: one after that of the row before",
        "keys and values of the accepted rows: computed from the target's hidden states, not the draft's own",
        "fc applied to the draft's own hidden state, which is as wide as the draft already",
        "a norm before the step: hidden_norm, and no other",
    ),
}


def usual_causes(stage: str) -> Sequence[str]:
    """Usual causes if `stage` is the first to depart."""
    boundary = boundary_of(stage)
    if boundary == 0:
        return ("other embedding weights", "embeddings that one side scales or norms", "a prompt that was shifted")
    if boundary is not None:
        return (
            f"layer {boundary - 1} of the target",
            *LAYER,
            "the last one taken after the final norm, as transformers' hidden_states[-1] is",
        )
    return CAUSES.get(stage) or CAUSES[stage.replace("step.", "draft.")]


@dataclass(frozen=True, slots=True)
class IdMap:
    """Difference of two maps from the draft's vocabulary to the target's.

    `differ` of `rows` differ, the first at `row`, where they have `a` and `b`.
    `kind`: B's ids are all off by one number; or one side holds offsets (`d2t`) and the other ids.
    """

    rows: int
    differ: int
    row: int
    a: int
    b: int
    kind: Literal["off by a constant", "offsets in A", "offsets in B", "other ids"]


def different_ids(a: StageDump, b: StageDump) -> IdMap | None:
    """Difference of the two maps; None if they are equal, or if one side has none."""
    if a.target_ids is None or b.target_ids is None or np.array_equal(a.target_ids, b.target_ids):
        return None
    x, y = a.target_ids, b.target_ids
    rows, wrong = np.arange(len(x)), np.flatnonzero(x != y)
    kind: Literal["off by a constant", "offsets in A", "offsets in B", "other ids"] = "other ids"
    if np.array_equal(y + rows, x):
        kind = "offsets in B"
    elif np.array_equal(x + rows, y):
        kind = "offsets in A"
    elif len(np.unique(y - x)) == 1:
        kind = "off by a constant"
    at = int(wrong[0])
    return IdMap(len(x), len(wrong), at, int(x[at]), int(y[at]), kind)

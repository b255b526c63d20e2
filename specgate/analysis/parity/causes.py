"""Usual causes of a departure by the stage where it is first seen, and traces in the tensors themselves.

Engines differ in conventions more often than in arithmetic. `usual_causes` lists them by stage; they were read in the
engines' sources and issues: vLLM 0.25.1 `model_executor/models/llama_eagle3.py`, SGLang 0.5.17
`srt/models/llama_eagle3.py`, SafeAILab/EAGLE `eagle/model/cnets.py`, sgl-project/sglang#25454, vllm-project/vllm#14649.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal

import numpy as np

from specgate.analysis.parity.distances import Matrix, distance
from specgate.checkpoints.stages.dump import StageDump
from specgate.checkpoints.stages.names import boundary_of, hidden

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


@dataclass(frozen=True, slots=True)
class Trace:
    """Something that the two tensors of a stage give away: with `what` undone, their relative error is `error`."""

    what: str
    error: float


def trace_of(stage: str, tolerance: float, a: StageDump, b: StageDump) -> tuple[Trace, ...]:
    """Simple changes that explain a departure to within `tolerance`; often none."""
    rows = min(len(a.tensors[stage]), len(b.tensors[stage]))
    x, y = a.tensors[stage][-rows:], b.tensors[stage][-rows:]
    tried = ((what, distance(p, q).error) for what, p, q in undone(stage, x, y, a, b) if len(p))
    return tuple(Trace(what, error) for what, error in tried if error <= tolerance)


def undone(stage: str, x: Matrix, y: Matrix, a: StageDump, b: StageDump) -> Iterator[tuple[str, Matrix, Matrix]]:
    """(what would be wrong, A, and B) with simple faults undone."""
    yield "row p of A is row p + 1 of B", x[:-1], y[1:]
    yield "row p of B is row p + 1 of A", x[1:], y[:-1]
    energy = float(np.vdot(y, y))
    if energy and (scale := float(np.vdot(x, y)) / energy) != 1:
        yield f"A is {scale:.4g} times B", x, (y * scale).astype(np.float32)
    if (boundary := boundary_of(stage)) is not None:
        for other in (boundary - 1, boundary + 1):
            if hidden(other) in b.tensors:
                yield f"{hidden(boundary)} of A is {hidden(other)} of B", x, b.tensors[hidden(other)][-len(x) :]
    if stage == "draft.features" and "draft.fc_out" in a.tensors:
        yield from reordered(x, y, a)


def reordered(x: Matrix, y: Matrix, a: StageDump) -> Iterator[tuple[str, Matrix, Matrix]]:
    """The captured hidden states in every other order, where their number is known and small."""
    state = a.tensors.get(hidden(0))
    count = x.shape[1] // state.shape[1] if state is not None else 3
    if not 1 < count <= 4 or x.shape[1] % count:
        return
    parts = np.split(y, count, axis=1)
    for order in permutations(range(count)):
        if order != tuple(range(count)):
            named = ", ".join(str(i + 1) for i in order)
            yield (
                f"A has B's captured layers in the order {named}",
                x,
                np.concatenate([parts[i] for i in order], axis=1),
            )

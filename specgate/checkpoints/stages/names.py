"""Every stage by name: which part of the pass it belongs to, how wide it is, and where it is taken.

Three parts are compared, each whole or not at all:

    target   one pass of the target over the prompt x(0) … x(L − 1): a row for each position
    draft    one pass of the draft over the same prompt: row p combines the target's hidden states of position p with
             token x(p + 1), so there are L − 1 rows
    step     one more step of the draft on its own hidden state, as when it proposes a second token: one row

No part depends on a token that an engine chose. The step takes token x(L − 1) at position L − 2, with the hidden state
that the draft's row L − 3 hands on; it overwrites the keys and values that the draft's pass wrote there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Part = Literal["target", "draft", "step"]
Width = Literal["target hidden size", "vocabulary", "auxiliary hidden states", "draft hidden size", "draft vocabulary"]

PROMPT: Final = "prompt_ids"
"""int64 [L]: the prompt that the tensors are of."""
TARGET_IDS: Final = "draft.target_ids"
"""int64 [draft vocabulary]: the target's token for each of the draft's. Ids, not the offsets of `d2t`. Optional."""
HIDDEN: Final = "target.hidden."
SHORTEST: Final[dict[Part, int]] = {"target": 1, "draft": 2, "step": 3}
"""Part → the shortest prompt that has it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the draft, or the target's logits; float [rows, width]. `taken`: where in the pass."""

    name: str
    part: Part
    width: Width
    taken: str
    optional: bool = False

    @property
    def short(self) -> str:
        """The name without its part."""
        return self.name.partition(".")[2]


STAGES: Final = (
    Stage("target.logits", "target", "vocabulary", "the target's LM head"),
    Stage(
        "draft.features",
        "draft",
        "auxiliary hidden states",
        "the captured hidden states side by side, lowest layer first, before any norm of the draft",
        optional=True,
    ),
    Stage("draft.fc_out", "draft", "draft hidden size", "the product with fc, before hidden_norm"),
    Stage("draft.attn_out", "draft", "draft hidden size", "the product with o_proj, before the residual is added"),
    Stage("draft.ffn_out", "draft", "draft hidden size", "the product with down_proj, before the residual is added"),
    Stage("draft.pre_head_hidden", "draft", "draft hidden size", "the final norm's output, which the LM head reads"),
    Stage("draft.logits", "draft", "draft vocabulary", "the draft's LM head, in the draft's own vocabulary"),
    Stage("step.hidden", "step", "draft hidden size", "the hidden state that the draft hands to its next step"),
    Stage("step.attn_out", "step", "draft hidden size", "as draft.attn_out"),
    Stage("step.ffn_out", "step", "draft hidden size", "as draft.ffn_out"),
    Stage("step.pre_head_hidden", "step", "draft hidden size", "as draft.pre_head_hidden"),
    Stage("step.logits", "step", "draft vocabulary", "as draft.logits"),
)
"""All stages but the target's hidden states, in the order of the pass. `hidden` names those."""
BY_NAME: Final = {stage.name: stage for stage in STAGES}


def hidden(boundary: int) -> str:
    """The name of the target's hidden state after `boundary` layers: 0 is the embedding, the last is before the final
    norm. float [rows, target hidden size].
    """
    return f"{HIDDEN}{boundary}"


def boundary_of(name: str) -> int | None:
    """The boundary of a hidden state of the target; None for any other name."""
    match = re.fullmatch(re.escape(HIDDEN) + r"(0|[1-9]\d{0,3})", name)
    return int(match[1]) if match else None


def part_of(name: str) -> Part | None:
    """The part that a stage belongs to; None for a name that is no stage."""
    if boundary_of(name) is not None:
        return "target"
    return BY_NAME[name].part if name in BY_NAME else None


def in_order(names: Iterable[str]) -> list[str]:
    """The stages among `names`, in the order of the pass."""
    present = set(names)
    layers = sorted((b, name) for name in present if (b := boundary_of(name)) is not None)
    return [name for _, name in layers] + [stage.name for stage in STAGES if stage.name in present]

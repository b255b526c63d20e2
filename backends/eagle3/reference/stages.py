"""Outputs of every stage of both passes for one prompt: the tensors that `specgate diagnose parity` compares.

They come from the functions that an engine decodes with. The target's hidden states are asked for as auxiliary ones of
every boundary; the draft's layer returns its branches anyway. So decoding pays nothing for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.reference.draft import (
    EagleDrafter,
    LayerOutput,
    draft_head,
    draft_layer,
    project_features,
)
from specgate.backends.eagle3.reference.loop import PREFILL_CHUNK, SpeculativeLoop
from specgate.checkpoints.stages.names import SHORTEST, TARGET_IDS, hidden
from specgate.errors import BackendError

SLOT = slice(0, 1)


def show_stages(
    loop: SpeculativeLoop, layers: int, prompt: Sequence[int], rows: int
) -> Mapping[str, NDArray[np.float32] | NDArray[np.int64]]:
    """As `protocols.ShowsStages.stages`, of a target with `layers` layers. Without a draft of the pair's: the target
    alone.

    Raises BackendError for a prompt that does not fit.
    """
    if not 0 < len(prompt) <= loop.max_positions:
        raise BackendError(f"{len(prompt)} tokens for an engine of {loop.max_positions} positions")
    loop.prompts, loop._last, loop._scored = [], None, None  # the caches hold this prompt from now on
    tokens = torch.tensor([list(prompt)], device=loop.device)
    drafter = loop.drafter if isinstance(loop.drafter, EagleDrafter) else None
    tail = Tail(rows)
    step = min(loop.model.prefill_rows, PREFILL_CHUNK)  # the draft's attention has a mask of rows by positions
    for start in range(0, len(prompt), step):
        end = min(start + step, len(prompt))
        positions = torch.arange(start, end, device=loop.device)[None]
        tail_rows = range(max(start, len(prompt) - rows), end)
        stream, states = loop.model.forward(
            SLOT, tokens[:, start:end], positions, range(layers + 1), [row - start for row in tail_rows] or [-1]
        )
        assert states is not None
        streams = states.chunk(layers + 1, dim=-1)
        if tail_rows:
            tail.add({hidden(b): streams[b] for b in range(layers + 1)} | {"target.logits": loop.model.logits(stream)})
        if drafter and (following := tokens[:, start + 1 : end + 1]).numel():
            known = following.shape[1]
            features = torch.cat([streams[b][:, :known] for b in drafter.boundaries], dim=-1)
            draft_rows(drafter, tail, following, features, positions[:, :known])
    tensors = tail.shown()
    if drafter:
        if len(prompt) >= SHORTEST["step"]:
            tensors |= draft_step(drafter, tail.handed_on, tokens, len(prompt) - 2)
        if len(prompt) >= SHORTEST["draft"]:
            tensors[TARGET_IDS] = drafter.weights.target_ids.cpu().numpy()
    return tensors


class Tail:
    """The last `rows` rows of every stage, on the CPU. `handed_on` [1, ≤ 2, Hd]: what the draft's last two rows would
    feed its next step.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.handed_on = torch.empty(0)
        self._kept: dict[str, Tensor] = {}

    def add(self, stages: Mapping[str, Tensor]) -> None:
        """Rows [1, T, width] that follow those added before."""
        for name, tensor in stages.items():
            new = tensor[0].float().cpu()
            self._kept[name] = (
                torch.cat((self._kept[name], new))[-self.rows :] if name in self._kept else new[-self.rows :]
            )

    def shown(self) -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in self._kept.items()}


def draft_rows(drafter: EagleDrafter, tail: Tail, following: Tensor, features: Tensor, positions: Tensor) -> None:
    """The draft over rows of the prompt with the target's hidden states."""
    projected = project_features(drafter.weights, drafter.geometry, features)
    layer = run_layer(drafter, following, projected, positions)
    layer = LayerOutput(*(branch[:, -max(tail.rows, 2) :] for branch in layer))  # the head is wide: only what is kept
    tail.add({"draft.features": features, "draft.fc_out": projected} | after_layer(drafter, "draft", layer))
    fed = fed_back(drafter, layer)
    tail.handed_on = torch.cat((tail.handed_on, fed), dim=1)[:, -2:] if tail.handed_on.numel() else fed[:, -2:]


def draft_step(drafter: EagleDrafter, handed_on: Tensor, tokens: Tensor, position: int) -> dict[str, Any]:
    """The draft's own next step at `position`, after the row before it."""
    own = handed_on[:, :1]
    at = torch.tensor([[position]], device=tokens.device)
    layer = run_layer(drafter, tokens[:, position + 1 : position + 2], own, at)
    tail = Tail(1)
    tail.add({"step.hidden": own} | after_layer(drafter, "step", layer))
    return tail.shown()


def run_layer(drafter: EagleDrafter, tokens: Tensor, states: Tensor, positions: Tensor) -> LayerOutput:
    cache = drafter.cache.slots(0, 1)
    return draft_layer(drafter.weights, drafter.geometry, drafter.table, cache, tokens, states, positions)


def after_layer(drafter: EagleDrafter, part: str, layer: LayerOutput) -> dict[str, Tensor]:
    """The stages of a pass through the draft's layer and head."""
    normed, logits = draft_head(drafter.weights, drafter.geometry, layer.stream)
    return {
        f"{part}.attn_out": layer.attn_out,
        f"{part}.ffn_out": layer.ffn_out,
        f"{part}.pre_head_hidden": normed,
        f"{part}.logits": logits,
    }


def fed_back(drafter: EagleDrafter, layer: LayerOutput) -> Tensor:
    """The hidden states [1, T, Hd] that feed the next draft step."""
    normed, _ = draft_head(drafter.weights, drafter.geometry, layer.stream)
    return normed if drafter.geometry.norm_output else layer.stream

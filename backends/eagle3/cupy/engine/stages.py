"""Results of every stage of both passes for one prompt: the tensors that `specgate diagnose parity` compares.

The last rows of a prompt are decoded one by one, with the kernels of a step and the prompt's own tokens, after a
prefill of what is before. So what is shown is what the engine decodes with, and it rests on its prefill's cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.launchers import KVReserve
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Slots
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, DraftBuffers, LayerBuffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.chain import Chain
from specgate.backends.eagle3.cupy.step.layer import Layer, Place, RowPositions
from specgate.backends.eagle3.cupy.step.verification import Verification
from specgate.backends.eagle3.cupy.step.verify import Verify
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations, Gemms
from specgate.checkpoints.stages.names import TARGET_IDS, hidden

Kept = defaultdict[str, list[Tensor]]
"""Stage → its rows, in the order of their positions."""


def first_shown(tokens: int, rows: int) -> int:
    """The first position of a prompt of `tokens` tokens that is decoded, so that its last `rows` are shown.

    Position 0 is always prefilled. The draft's own next step begins at the row before the last, so two rows are decoded
    where there are two.
    """
    return max(1, tokens - max(rows, 2))


class StagePasses:
    """The kernels of a step over one row of one slot, and what they leave at every stage."""

    def __init__(self, target: Target, draft: Draft | None, sizes: Sizes, tuned: Configurations) -> None:
        gemms, self._kept = Gemms(tuned, sizes.largest_step), Kept(list)
        self.reserve = KVReserve(sizes.slots, 1, sizes.positions, sizes.max_blocks, sizes.blocks)
        self.verify = Verify(target, sizes, 1, gemms, Verification(target, sizes, 0), draft)
        self.draft = DraftPasses(draft, sizes, gemms, self._kept) if draft else None

    def run(self, b: Buffers, prompt: Sequence[int], start: int) -> Fault:
        """Decode positions `start` … of the prompt, after its first `start` tokens were prefilled into slot 0.

        The draft's features in `b` are those of position `start` − 1.
        """
        faults = Fault(0)
        for position in range(start, len(prompt)):
            place(b.slots, position, prompt[position])
            self.reserve(b.kv, b.slots)
            if self.draft:
                self.draft.extend(b)
                if position == len(prompt) - 2:
                    self.draft.step(b, prompt[-1])
            self._target_row(b)
            faults |= self.verify.choices(b, 1)[1]
        return faults

    def shown(self, rows: int) -> dict[str, Any]:
        """The last `rows` rows of every stage, float32 [rows, width], and the draft's target ids, int64 [W]."""
        tensors: dict[str, Any] = {
            name: torch.stack(stage_rows[-rows:]).float().cpu().numpy() for name, stage_rows in self._kept.items()
        }
        if self.draft:
            tensors[TARGET_IDS] = self.draft.model.target_ids.long().cpu().numpy()
        return tensors

    def _target_row(self, b: Buffers) -> None:
        streams = watched(self.verify.layer, b.target.layer)
        self.verify(b, b.slots.rows(1, 1))
        for boundary, stream in enumerate((streams["input"][0], *streams["down"])):
            self._kept[hidden(boundary)].append(stream)
        self._kept["target.logits"].append(b.target.layer.logits[0].clone())


class DraftPasses:
    """The draft's kernels over one row of one slot, in the order of `Chain`."""

    def __init__(self, model: Draft, sizes: Sizes, gemms: Gemms, stage_rows: Kept) -> None:
        self.model, self.eps, self._kept = model, model.geometry.rms_eps, stage_rows
        self.chain = Chain(model, sizes, 1, 0, gemms)

    def extend(self, b: Buffers) -> None:
        """The row with the target's hidden states of the position before the newest token."""
        d = buffers_of(b)
        streams = watched(self.chain.extension, d.layer)
        self.chain.extend(b)
        self._keep("draft.features", d.features[0, 0])
        self._keep("draft.fc_out", d.hidden[0])
        self._keep_layer("draft", streams, b)
        self._choose(b, None, self.model.target_ids)

    def step(self, b: Buffers, token: int) -> None:
        """The draft's own next step, as if it had proposed `token`. The next row overwrites what this caches."""
        d = buffers_of(b)
        normed = normed_rows(d.layer.pre_norm, self.eps)[0]
        self._keep("step.hidden", normed if self.model.geometry.norm_output else d.layer.stream[0])
        # The kernel writes the next step's input for the token that the head chose: whatever that is, it means `token`.
        self._head(b)
        self._choose(b, d.input, torch.full_like(self.model.target_ids, token))
        streams, w, rows = watched(self.chain.step, d.layer), self.model.weights, b.slots.rows(1, 1)
        at = RowPositions(self.model.rope, b.kv, b.slots.length)
        self.chain.step(d.layer, w.layer, w.norm, d.pages, 0, d.input, rows, rows, at)
        self._keep_layer("step", streams, b)
        self._choose(b, None, self.model.target_ids)

    def _keep_layer(self, part: str, streams: Mapping[Place, Sequence[Tensor]], b: Buffers) -> None:
        """Keep what the two branches of the draft's layer have added to the stream, and what the head gets."""
        d = buffers_of(b)
        before, attended, after = (streams[place][0] for place in ("input", "o", "down"))
        self._keep(f"{part}.attn_out", attended - before)
        self._keep(f"{part}.ffn_out", after - attended)
        self._keep(f"{part}.pre_head_hidden", normed_rows(d.layer.pre_norm, self.eps)[0])
        self._head(b)
        self._keep(f"{part}.logits", d.layer.logits[0])

    def _head(self, b: Buffers) -> None:
        d, rows = buffers_of(b), b.slots.rows(1, 1)
        lm_head = self.model.weights.lm_head
        self.chain.lm_head(d.layer.logits, d.layer.pre_norm, lm_head, rows, eps=self.eps, choices=d.choices)

    def _choose(self, b: Buffers, out: Tensor | None, target_ids: Tensor) -> None:
        """Take the head's choice, which clears it. With `out`, write the input of the draft's next step there."""
        d, rows = buffers_of(b), b.slots.rows(1, 1)
        groups = rows, d.layer, d.layer.pre_norm, self.model.input, b.slots
        self.chain.token(*groups, input=out, choices=d.choices, target_ids=target_ids, index=0, eps=self.eps)

    def _keep(self, name: str, row: Tensor) -> None:
        self._kept[name].append(row.clone())


def buffers_of(b: Buffers) -> DraftBuffers:
    assert b.draft is not None
    return b.draft


def place(slots: Slots, position: int, token: int) -> None:
    """Make `token` at `position` the newest of slot 0, which is the only active one. The target has not read it yet."""
    slots.active[0], slots.active_count[0] = 0, 1
    slots.length[0], slots.last_token[0] = position, token
    slots.counts[0], slots.pending[0, 0] = 1, token


def watched(layer: Layer, b: LayerBuffers) -> dict[Place, list[Tensor]]:
    """Collect the residual stream of row 0 at every place, in the order of the calls of `layer` that follow."""
    streams: dict[Place, list[Tensor]] = {"input": [], "o": [], "down": []}
    layer.watch = lambda at: streams[at].append(b.stream[0].clone())
    return streams


def normed_rows(rows: PreNormRows, eps: float) -> Tensor:
    """The rows after their RMSNorm, float32 [R, H]. No kernel divides them by themselves."""
    mean = rows.squares.sum(-1, keepdim=True) / rows.normed.shape[-1]
    return rows.normed.float() / (mean + eps).sqrt()

"""Prompts through a target that is split among several GPUs: `engine/prefill.py`, all ranks side by side.

Each rank has its heads and its part of the feed-forward width, and the whole stream. After each product that leaves
partial sums, the ranks add up all parts (`sums.py`). The draft is prefilled on every rank, from streams with the same
bits. How a mixture of experts is gone through is in `prefill_experts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.prefill import (
    cache_heads,
    capture,
    chunks,
    embed,
    gated,
    prefill_draft,
    project,
)
from specgate.backends.eagle3.cupy.engine.prefill_attention import attend_last, split_heads
from specgate.backends.eagle3.cupy.engine.prefill_experts import Passage, together
from specgate.backends.eagle3.cupy.engine.prefilled import LastRow, copy_tail
from specgate.backends.eagle3.cupy.engine.ranks.prefill_experts import ExpertPrefill
from specgate.backends.eagle3.cupy.engine.ranks.rank import OneOfRanks
from specgate.backends.eagle3.cupy.engine.ranks.sums import PartialSums, add_parts
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.memory.sizes import CacheLayout
from specgate.backends.eagle3.lib.weights import LayerWeights, TargetWeights


class RankPass:
    """One rank's share of a prompt's pass: `x` float32 [P, H], the same on all ranks, `qkv` of its own heads."""

    def __init__(
        self, rank: OneOfRanks, tokens: Sequence[int], blocks: Sequence[int], boundaries: tuple[int, ...]
    ) -> None:
        self.rank, self.mode, self.g = rank, rank.mode, rank.target.geometry
        assert isinstance(rank.target.weights, TargetWeights)
        self.w: TargetWeights = rank.target.weights
        self.tokens, self.blocks = (torch.tensor(ids, device=rank.device) for ids in (tokens, blocks))
        g, count = self.g, len(tokens)
        self.heads = Heads.of(g, count)
        self.x = torch.empty(count, g.hidden, dtype=torch.float32, device=rank.device)
        wide = len(boundaries) * g.hidden
        self.features = self.x.new_empty(count, wide, dtype=torch.bfloat16) if boundaries else None
        self.qkv = self.x.new_empty(count, self.heads.qkv_width, dtype=torch.bfloat16)
        self.mixed: Tensor = self.qkv[:0]
        self.normed: Tensor = self.qkv[:0]

    def begin(self, rows: slice) -> None:
        self.normed = embed(
            self.x[rows], self.w.embed, self.tokens[rows], self.w.layers[0].input_norm, self.g.rms_eps, self.mode
        )

    def enter(self, layer: int, rows: slice) -> None:
        """Into the queries, keys and values of `layer`."""
        project(self.normed, self.w.layers[layer].qkv, self.qkv[rows])

    def cache(self, layer: int) -> None:
        table, pages = self.rank.target.rope, self.rank.b.target.pages
        norms = self.w.layers[layer].head_norms
        cache_heads(self.qkv, table, pages, layer, self.blocks, self.heads, self.mode, norms)

    def attend(self) -> None:
        self.mixed = self.qkv[:0]  # that of the layer before is gone before this one is made
        self.mixed = self.mode.attention(*split_heads(self.qkv, self.heads))

    def attend_last(self) -> Tensor:
        q, k, v = split_heads(self.qkv, self.heads)
        return attend_last(q[-1:], k, v)


class Prefill:
    """Prefills prompts on all `ranks`. Nothing here waits for a GPU but for how many rows go to which experts."""

    def __init__(self, ranks: Sequence[OneOfRanks]) -> None:
        self.ranks, self.chunk = ranks, ranks[0].mode.chunk
        streams, devices, g = [r.stream.torch for r in ranks], [r.device for r in ranks], ranks[0].target.geometry
        self.sums = PartialSums(streams, devices, self.chunk, g.hidden)
        self.experts = ExpertPrefill(ranks, self.sums) if g.experts else None

    def prompts(self, prompts: Sequence[Sequence[int]], layout: CacheLayout, *, draft: bool) -> list[list[LastRow]]:
        """Every prompt into the blocks of its slot, and equal prompts once. Returns the last rows of every rank."""
        first = [slot for slot, twin in enumerate(layout.twin) if twin == slot]
        last_rows: list[dict[int, LastRow]] = [{} for _ in self.ranks]
        for slots in self._waves(first, prompts):
            rows = self._wave([(prompts[slot], layout.blocks[slot]) for slot in slots], draft=draft)
            for own, last in zip(last_rows, rows, strict=True):
                own.update(zip(slots, last, strict=True))
        for rank in self.ranks:
            with rank.stream.current():
                for slot, twin in enumerate(layout.twin):
                    if twin != slot:
                        copy_tail(rank.b, layout, twin, slot)
        return [[own[twin] for twin in layout.twin] for own in last_rows]

    def _waves(self, slots: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Slots whose prompts go through the layers together; of a dense target it is one each."""
        if self.experts is None:
            return [[slot] for slot in slots]
        return [slots[wave.start : wave.stop] for wave in together([len(prompts[slot]) for slot in slots])]

    def _wave(self, prompts: Sequence[tuple[Sequence[int], Sequence[int]]], *, draft: bool) -> list[list[LastRow]]:
        """Prompts of (tokens, blocks) on all ranks: the target, then the draft of each. The last rows of every rank."""
        heads = [rank.draft if draft else None for rank in self.ranks]
        boundaries = heads[0].boundaries if heads[0] else ()
        passes: Sequence[Sequence[RankPass | Passage]]
        if self.experts is None:
            passes = [[one] for prompt in prompts for one in self.target(*prompt, boundaries)]
        else:
            passes = self.experts.wave(prompts, boundaries)
        last = list[list[LastRow]]()
        for rank, of_prompts, head in zip(self.ranks, passes, heads, strict=True):
            last.append([])
            with rank.stream.current():
                for one in of_prompts:
                    if head is not None and one.features is not None and rank.b.draft is not None:
                        prefill_draft(head, rank.b.draft.pages, one.tokens, one.blocks, one.features, rank.mode)
                    features = one.features[-1].clone() if one.features is not None else None
                    last[-1].append(LastRow(one.x[-1].clone(), features))
        return last

    def target(self, tokens: Sequence[int], blocks: Sequence[int], boundaries: tuple[int, ...]) -> list[RankPass]:
        """As `prefill_target`, in the same order."""
        passes = list[RankPass]()
        for rank in self.ranks:
            with rank.stream.current():
                passes.append(RankPass(rank, tokens, blocks, boundaries))
        count, layers = len(tokens), passes[0].g.layers
        for rows in chunks(count, self.chunk):
            for one in passes:
                with one.rank.stream.current():
                    one.begin(rows)
                    one.enter(0, rows)
        self._capture(passes, boundaries, 0)
        for layer in range(layers - 1):
            for one in passes:
                with one.rank.stream.current():
                    one.cache(layer)
                    one.attend()
            for rows in chunks(count, self.chunk):
                self._finish(passes, layer, [one.x[rows] for one in passes], [one.mixed[rows] for one in passes])
                for one in passes:
                    with one.rank.stream.current():
                        one.enter(layer + 1, rows)
            self._capture(passes, boundaries, layer + 1)
        final, mixed = list[Tensor](), list[Tensor]()
        for one in passes:
            with one.rank.stream.current():
                one.cache(layers - 1)
                final.append(one.x[-1:].clone())
                mixed.append(one.attend_last())
                if layers in boundaries:
                    one.attend()
        if layers in boundaries:
            for rows in chunks(count, self.chunk):
                self._finish(passes, layers - 1, [one.x[rows] for one in passes], [one.mixed[rows] for one in passes])
            self._capture(passes, boundaries, layers)
        self._finish(passes, layers - 1, final, mixed)
        for one, row in zip(passes, final, strict=True):
            with one.rank.stream.current():
                one.x[-1:] = row
        return passes

    def _finish(self, passes: Sequence[RankPass], layer: int, x: Sequence[Tensor], mixed: Sequence[Tensor]) -> None:
        """Rows of the stream through the rest of `layer`, from what attention has made of each rank's heads, `mixed`.
        Leaves their norm with the weight of the next one in `normed`.
        """
        weights = [one.w.layers[layer] for one in passes]
        self._add(passes, x, mixed, [w.o for w in weights], [w.post_norm for w in weights])
        gates = list[Tensor]()
        for one, w in zip(passes, weights, strict=True):
            with one.rank.stream.current():
                gates.append(gated(F.linear(one.normed, w.gate_up), one.mode))
        self._add(passes, x, gates, [w.down for w in weights], [following(one, layer) for one in passes])

    def _add(
        self,
        passes: Sequence[RankPass],
        x: Sequence[Tensor],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        norms: Sequence[Tensor],
    ) -> None:
        """x += Σ over ranks of inputs · weightsᵀ, on every rank; leaves its norm in `normed`."""
        parts = self.sums.begin(len(x[0]))
        for one, rows, weight, part in zip(passes, inputs, weights, parts, strict=True):
            with one.rank.stream.current():
                project(rows, weight, part)
        self.sums.end()
        for one, stream, norm in zip(passes, x, norms, strict=True):
            with one.rank.stream.current():
                one.normed = add_parts(stream, parts, norm, one.g.rms_eps, one.mode)

    def _capture(self, passes: Sequence[RankPass], boundaries: tuple[int, ...], boundary: int) -> None:
        for one in passes:
            with one.rank.stream.current():
                capture(one.features, one.x, boundaries, boundary)


def following(one: RankPass, layer: int) -> Tensor:
    """The weight of the norm after `layer`."""
    layers: tuple[LayerWeights, ...] = one.w.layers
    return layers[layer + 1].input_norm if layer + 1 < len(layers) else one.w.norm

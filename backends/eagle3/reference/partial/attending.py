"""Attention of a partial verification, and that of a full one, which chooses what the next ones keep."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.specpv.plan import PartialPlan
from specgate.backends.eagle3.reference.cache import View, view
from specgate.backends.eagle3.reference.kv_planes import Plane, plain
from specgate.backends.eagle3.reference.ops import masked_attention
from specgate.backends.eagle3.reference.partial.blocks import (
    block_scores,
    choose,
    first_of_window,
    kept_positions,
    summaries,
)
from specgate.backends.eagle3.reference.target import look_at


@dataclass(slots=True)
class Choice:
    """Parts of the slots' caches that are kept since the last full verification.

    `window` [B]: the block with which the window begins. `sink`: blocks that are kept at the beginning. `blocks`: of
    each layer the retrieved ones, as from `choose`.
    """

    window: Tensor
    sink: int
    blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def between(self) -> Tensor:
        """Blocks [B] between sink and window, of which some are retrieved."""
        return self.window - self.sink


@dataclass(slots=True)
class FullLook:
    """Attention of a full verification: over the whole cache. Its layers make a `choice` on the way. On the way they
    make a `choice`.

    `asking` [B, Q]: the rows whose queries choose, of caches with `length` [B] positions before the newest token.
    """

    plan: PartialPlan
    seen: View
    asking: Tensor
    choice: Choice

    @classmethod
    def make(cls, plan: PartialPlan, positions: Tensor, asking: Tensor, length: Tensor) -> FullLook:
        window = first_of_window(length, plan.sink, plan.window)
        return cls(plan, view(positions, None), asking, Choice(window, plan.sink))

    def __call__(self, layer: int, q: Tensor, k_cache: Plane, v_cache: Plane) -> Tensor:
        index = self.asking[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        largest, smallest = summaries(plain(k_cache))
        scores = block_scores(q.gather(2, index), largest, smallest)
        self.choice.blocks[layer] = choose(scores, self.plan.sink, self.choice.window, self.plan.retrieval)
        return look_at(q, k_cache, v_cache, self.seen)


@dataclass(slots=True)
class PartialLook:
    """Attention of a partial verification: over the cache that `choice` keeps and over newer rows.

    `positions` [B, T]: those of the rows, ascending within a slot.
    """

    choice: Choice
    positions: Tensor

    def __call__(self, layer: int, q: Tensor, k_cache: Plane, v_cache: Plane) -> Tensor:
        chosen, meant = self.choice.blocks[layer]
        stop = self.positions[:, -1] + 1
        cached_positions, there = kept_positions(self.choice.sink, chosen, meant, self.choice.window, stop)
        k, v = (gathered(plain(plane), cached_positions).to(q.dtype) for plane in (k_cache, v_cache))
        visible = there[:, :, None] & (cached_positions[:, :, None] <= self.positions[:, None, :, None])
        return masked_attention(q, k, v, visible.repeat_interleave(q.shape[1] // k.shape[1], dim=1))


def gathered(cache: Tensor, positions: Tensor) -> Tensor:
    """The rows of a cache [B, G, S, D] at `positions` [B, G, P]: [B, G, P, D]. Those beyond it are without meaning."""
    index = positions.clamp(max=cache.shape[2] - 1)[..., None]
    return torch.take_along_dim(cache, index, dim=2)

"""A target or a draft split among several GPUs: which part of every tensor each of them has.

Query heads, key/value heads, gate and up rows and the rows of the LM head are divided evenly, each rank having its
neighbours in order. The output projection and `down` are divided along k, so that their results are partial sums, which
all ranks add up. Embedding, norms and routers are on every rank, and of a draft `fc` and its vocabulary map.

Of a mixture of experts, every rank has a part of the width of each expert, and so of every matrix of them: in a step,
all ranks have as much to do, whichever experts its tokens choose. Gate and up rows alternate, so neighbouring pairs of
them are a part. MXFP4 numbers share a scale in blocks along k, and blocks are not cut. A bias of what is summed over
all ranks is added once: the first rank has it, and the others have zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.checkpoint import own_part
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.checkpoints.heads.tensors import Wanted
from specgate.checkpoints.mxfp4 import BLOCK

QKV: Final = ("q_proj", "k_proj", "v_proj")
AXES: Final[Mapping[str, int]] = {
    **{f"{name}.{of}": 0 for name in QKV for of in ("weight", "bias")},
    "self_attn.sinks": 0,
    "o_proj.weight": 1,
    "gate_proj.weight": 0,
    "up_proj.weight": 0,
    "down_proj.weight": 1,
    "lm_head.weight": 0,
    # Of all experts together: the first axis is theirs. Matrices of floats are stored transposed.
    "experts.gate_up_proj": 2,
    "experts.gate_up_proj_blocks": 1,
    "experts.gate_up_proj_scales": 1,
    "experts.gate_up_proj_bias": 1,
    "experts.down_proj": 1,
    "experts.down_proj_blocks": 2,
    "experts.down_proj_scales": 2,
}
"""The last two parts of a tensor's name → the axis along which it is divided. All others are not."""
ONCE: Final = frozenset({"o_proj.bias", "experts.down_proj_bias"})
"""Biases of sums over all ranks."""


@dataclass(frozen=True, slots=True)
class Span:
    """Elements `start` … `stop` − 1 along `axis` of a tensor."""

    axis: int
    start: int
    stop: int

    def of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of such a part of a tensor of `shape`."""
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `ranks`."""

    rank: int = 0
    ranks: int = 1

    def unfit(self, g: TargetGeometry | DraftGeometry) -> dict[str, int]:
        """Key of the config → its value, of all sizes that cannot be divided."""
        sizes = {
            "num_key_value_heads": g.kv_heads,
            "num_attention_heads": g.heads,
            "intermediate_size": g.intermediate,
            **({"draft_vocab_size": g.draft_vocab} if isinstance(g, DraftGeometry) else {"vocab_size": g.vocab}),
        }
        return {key: size for key, size in sizes.items() if size % self.ranks}

    def cuts_blocks(self, g: TargetGeometry) -> bool:
        """True if a part of the feed-forward width would end within a block of 32 MXFP4 numbers."""
        return g.experts is not None and g.experts.mxfp4 and g.intermediate // self.ranks % BLOCK > 0

    def geometry(self, g: TargetGeometry) -> TargetGeometry:
        """Return the sizes for the kernels of one rank: fewer heads, a narrower feed-forward part, fewer rows of the LM
        head.

        Raises ValueError for sizes that cannot be divided.
        """
        if self.ranks == 1:
            return g
        if wrong := self.unfit(g):
            raise ValueError(f"{wrong} cannot be divided by {self.ranks}")
        if self.cuts_blocks(g):
            raise ValueError(f"intermediate_size = {g.intermediate}: a part of {self.ranks} would cut blocks of MXFP4")
        n = self.ranks
        return replace(
            g, heads=g.heads // n, kv_heads=g.kv_heads // n, intermediate=g.intermediate // n, vocab=g.vocab // n
        )

    def of_draft(self, g: DraftGeometry) -> DraftGeometry:
        """The same of a draft. Raises ValueError for sizes that cannot be divided."""
        if wrong := self.unfit(g):
            raise ValueError(f"{wrong} cannot be divided by {self.ranks}")
        n = self.ranks
        heads, kv_heads = g.heads // n, g.kv_heads // n
        return replace(
            g, heads=heads, kv_heads=kv_heads, intermediate=g.intermediate // n, draft_vocab=g.draft_vocab // n
        )

    def span(self, name: str, shape: tuple[int, ...]) -> Span | None:
        """The part of the tensor with the canonical `name`, whole of `shape`, that this rank has; None: all of it.

        Raises ValueError where that cannot be divided.
        """
        axis = AXES.get(kind(name))
        if self.ranks == 1 or axis is None:
            return None
        each, rest = divmod(shape[axis], self.ranks)
        if rest:
            raise ValueError(f"{name}: {shape[axis]} cannot be divided by {self.ranks}")
        return Span(axis, self.rank * each, (self.rank + 1) * each)

    def has_zeros(self, name: str) -> bool:
        """True if this rank has zeros in the place of the tensor `name`, which another rank adds to a sum."""
        return self.rank > 0 and kind(name) in ONCE

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor, in memory of its own."""
        if self.has_zeros(name):
            return torch.zeros_like(whole)
        span = self.span(name, tuple(whole.shape))
        return whole.clone() if span is None else own_part(whole, span.axis, span.start, span.stop)

    def wanted(self, whole: Mapping[str, Wanted]) -> dict[str, Wanted]:
        """The tensors of this rank with their shapes."""
        spans = {name: self.span(name, want.shape) for name, want in whole.items()}
        return {
            name: replace(want, shape=span.of(want.shape)) if (span := spans[name]) else want
            for name, want in whole.items()
        }


def kind(name: str) -> str:
    """The last two parts of a tensor's name: what it is, without the layer that it is of."""
    return ".".join(name.split(".")[-2:])


WHOLE: Final = Shard()


def shards(ranks: int) -> tuple[Shard, ...]:
    return tuple(Shard(rank, ranks) for rank in range(ranks))

"""A dense target split among several GPUs: which part of every tensor each of them has.

Query heads, key/value heads, gate and up rows and the rows of the LM head are divided evenly, each rank having its
neighbours in order. The output projection and `down` are divided along k, so that their results are partial sums, which
all ranks add up. Embedding and norms are on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from specgate.eagle3.checkpoint import Wanted
from specgate.eagle3.geometry import TargetGeometry

ROWS: Final = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"})
COLUMNS: Final = frozenset({"o_proj", "down_proj"})


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

    def unfit(self, g: TargetGeometry) -> dict[str, int]:
        """Key of the config → its value, of all sizes that cannot be divided."""
        sizes = {
            "num_key_value_heads": g.kv_heads,
            "num_attention_heads": g.heads,
            "intermediate_size": g.intermediate,
            "vocab_size": g.vocab,
        }
        return {key: size for key, size in sizes.items() if size % self.ranks}

    def geometry(self, g: TargetGeometry) -> TargetGeometry:
        """What the kernels of one rank see: fewer heads, a narrower feed-forward part, fewer rows of the LM head.

        Raises ValueError for sizes that cannot be divided.
        """
        if self.ranks == 1:
            return g
        if wrong := self.unfit(g):
            raise ValueError(f"{wrong} cannot be divided by {self.ranks}")
        n = self.ranks
        return replace(
            g, heads=g.heads // n, kv_heads=g.kv_heads // n, intermediate=g.intermediate // n, vocab=g.vocab // n
        )

    def span(self, name: str, shape: tuple[int, ...]) -> Span | None:
        """The part of the tensor with the canonical `name`, whole of `shape`, that this rank has; None: all of it."""
        if self.ranks == 1:
            return None
        kind = name.split(".")[-2]
        if kind not in ROWS | COLUMNS:
            return None
        axis = 0 if kind in ROWS else 1
        each, rest = divmod(shape[axis], self.ranks)
        if rest:
            raise ValueError(f"{name}: {shape[axis]} cannot be divided by {self.ranks}")
        return Span(axis, self.rank * each, (self.rank + 1) * each)

    def wanted(self, whole: Mapping[str, Wanted]) -> dict[str, Wanted]:
        """The tensors of this rank with their shapes."""
        spans = {name: self.span(name, want.shape) for name, want in whole.items()}
        return {
            name: replace(want, shape=span.of(want.shape)) if (span := spans[name]) else want
            for name, want in whole.items()
        }


WHOLE: Final = Shard()


def shards(ranks: int) -> tuple[Shard, ...]:
    return tuple(Shard(rank, ranks) for rank in range(ranks))

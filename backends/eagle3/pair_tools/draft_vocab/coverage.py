"""Coverage of text by a draft vocabulary of each size, and what the size costs.

FR-Spec (Zhao et al., 2025, arXiv 2502.14856) chooses draft tokens by frequency in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes
from specgate.errors import UsageError

DRAFTED: Final = 3
"""Draft tokens of the cycle that is reckoned."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that are read at least, by one request, without the KV cache: `head` by the draft's LM head, `step` by a
    draft step, `cycle` by a cycle of `DRAFTED` draft tokens and their verification.
    """

    head: int
    step: int
    cycle: float


def cost(target: TargetGeometry, draft: DraftGeometry, size: int, dtype: torch.dtype) -> Cost:
    """The cost with a draft vocabulary of `size`, where weights are stored in `dtype`."""
    traffic = pair_traffic(target, replace(draft, draft_vocab=size, own_lm_head=True), dtype)
    assert traffic.draft is not None
    step = traffic.draft.step
    slots = [Slot(cached=0, rows=DRAFTED + 1)]
    cycle = pass_bytes(traffic.target, slots).weights + draft_bytes(traffic.draft, slots, [DRAFTED]).weights
    return Cost(size * draft.hidden * dtype.itemsize, step.weight_bytes + step.token_bytes, cycle)


SHARES: Final = (0.95, 0.98, 0.99, 0.995)
"""Coverages whose sizes are named."""
NAMED: Final = 8
"""Tokens of the tail that are named."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Tokens in the order in which a growing draft vocabulary takes them.

    `ids`, int64 [C]: the `special` tokens first, which every vocabulary holds, then the others by count. `covered`,
    int64 [C]: the number of the `total` counted tokens that the first n of `ids` are, for n = 1 … C.
    """

    ids: Tensor
    covered: Tensor
    special: int
    total: int

    @property
    def least(self) -> int:
        """The smallest vocabulary."""
        return max(1, self.special)

    def share(self, n: int) -> float:
        """The share of the counted tokens that a vocabulary of `n` holds."""
        return int(self.covered[n - 1]) / self.total

    def size_for(self, share: float) -> int | None:
        """The smallest vocabulary that holds `share` of the counted tokens; None where none does."""
        needed = math.ceil(Fraction(str(share)) * self.total)
        n = int(torch.searchsorted(self.covered, needed)) + 1
        return max(n, self.least) if n <= len(self.ids) else None

    def sizes(self, *also: int) -> list[int]:
        """Powers of two from the smallest vocabulary to the largest, the largest itself, and `also`."""
        powers = (1 << i for i in range(len(self.ids).bit_length()))
        return sorted({n for n in (*powers, len(self.ids), *also) if self.least <= n <= len(self.ids)})

    def chosen(self, size: int) -> Tensor:
        """The ids of a vocabulary of `size`, ascending, int64 [size]. Raises UsageError for a size that it cannot
        have.
        """
        if not self.least <= size <= len(self.ids):
            raise UsageError(
                f"draft vocabulary of {size} tokens: {self.least} to {len(self.ids)} are possible",
                hint=f"{self.special} special tokens are always kept" if size < self.least else None,
            )
        return self.ids[:size].sort().values


def ranking(counts: Tensor, special: Sequence[int] = (), among: Tensor | None = None) -> Ranking:
    """Rank the tokens of `counts` int64 [V], those of the ids `among` where they are given. Of tokens that are counted
    as often, the lower id comes first, so that equal counts give equal vocabularies.
    """
    allowed = torch.ones(len(counts), dtype=torch.bool)
    if among is not None:
        allowed = torch.zeros_like(allowed).index_fill(0, among, True)
    first = torch.zeros_like(allowed).index_fill(0, torch.tensor(special, dtype=torch.int64), True) & allowed
    ranked = counts.masked_fill(first, int(counts.max()) + 1).sort(descending=True, stable=True).indices
    ids = ranked[allowed[ranked]]
    return Ranking(ids, counts[ids].cumsum(0), int(first.sum()), int(counts.sum()))


@dataclass(frozen=True, slots=True)
class Tail:
    """Tokens that a vocabulary leaves out: `tokens` of the counted ones, of `distinct` ids, `once` of them counted
    once.

    `most`: (id, count) of the ids that are left out most often.
    """

    tokens: int
    distinct: int
    once: int
    most: tuple[tuple[int, int], ...]


def tail_of(counts: Tensor, ids: Tensor) -> Tail:
    """The tail of the vocabulary `ids` [W]."""
    left = counts.index_fill(0, ids, 0)
    ranked = left.sort(descending=True, stable=True).indices[:NAMED].tolist()
    most = tuple((i, int(left[i])) for i in ranked if left[i])
    return Tail(int(left.sum()), int((left > 0).sum()), int((left == 1).sum()), most)


def reached(order: Ranking) -> Iterator[tuple[float, int | None]]:
    """(share, smallest vocabulary that reaches it) for every one of `SHARES`."""
    return ((share, order.size_for(share)) for share in SHARES)

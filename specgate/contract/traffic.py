"""The least that the passes of an engine must move through memory. The engine states it per pass; it is counted here.

This is a floor, not a forecast. Every byte of weights and of the KV cache that a pass needs is read once, and every
position that it adds to the cache is written once. Activations are not counted: those of a step are a few megabytes and
stay on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from specgate.contract.types import LARGEST, Count, Range, Size


@dataclass(frozen=True, slots=True)
class AttentionTraffic:
    """`layers` that each cache `position_bytes` (keys and values) per position.

    `window`: how many of the last positions a row attends to, its own included; None for all of them.
    """

    layers: Count
    position_bytes: Count
    window: Size | None = None


@dataclass(frozen=True, slots=True)
class ExpertTraffic:
    """`layers` of `count` experts with `expert_bytes` each. The router sends every token to `active` of them.

    In formulas E is `count` and k is `active`.
    """

    layers: Size
    count: Size
    active: Size
    expert_bytes: Size

    def __post_init__(self) -> None:
        if self.active > self.count:
            raise ValueError(f"active = {self.active}, but count = {self.count}: at most as many are needed")

    def distinct(self, tokens: int, overlap: float = 0.0) -> float:
        """Expected number of distinct experts of a layer that `tokens` neighbouring tokens reach.

        A router that spreads tokens evenly and chooses independently for each one reaches D = E·(1 − (1 − k/E)^n): a
        token misses a given expert with probability 1 − k/E. One that sends all tokens to the same experts reaches k.
        With the overlap o it is D − o·(D − k).
        """
        if tokens < 1:
            return 0.0
        independent = self.count * (1 - (1 - self.active / self.count) ** tokens)
        return independent - overlap * (independent - self.active)

    def distinct_of_slots(self, rows: Sequence[int], overlap: float = 0.0, independence: float = 1.0) -> float:
        """Expected number of distinct experts of a layer that slots with `rows` tokens each reach together.

        The tokens of a slot overlap as in `distinct`. The slots are independent of each other: an expert is missed if
        each of them misses it. Where they are not, `independence` is how many independent slots a slot counts as.
        """
        missed = math.prod(1 - self.distinct(n, overlap) / self.count for n in rows)
        return self.count * (1 - missed**independence)


@dataclass(frozen=True, slots=True)
class PassTraffic:
    """One pass of a decoder.

    `weight_bytes`: weights that are read once per pass, however many tokens it has.
    `token_bytes`: bytes per token, which is its row of the embedding.
    `attention`: the layers with a KV cache.
    `experts`: None for a model without experts.
    """

    weight_bytes: Count
    token_bytes: Count
    attention: tuple[AttentionTraffic, ...]
    experts: ExpertTraffic | None = None


@dataclass(frozen=True, slots=True)
class DraftTraffic:
    """The passes that draft a chain of K tokens.

    `extension`: the first pass, over the tokens that the last cycle emitted. Only the last of them attends.
    `step`: each of the K − 1 passes over one token that follow.
    """

    extension: PassTraffic
    step: PassTraffic


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """Traffic between `gpus` GPUs that share a target: each sends `row_bytes` per row of a target's pass, and
    `draft_row_bytes` per token of the draft, which is 0 if each has the whole draft.
    """

    gpus: Annotated[int, Range(ge=2, le=LARGEST)]
    row_bytes: Count
    draft_row_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that the passes of an engine must move.

    `target`: the target's pass, which verifies or decodes without a draft.
    `draft`: the draft's passes; None where there is no draft, or where the engine does not read what a draft would.
    `link`: of several GPUs that share the target; None for one. All else is then what each of them moves.
    """

    target: PassTraffic
    draft: DraftTraffic | None = None
    link: LinkTraffic | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs that share the target."""
        return self.link.gpus if self.link else 1


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that a pass works on: it has `cached` positions before the pass, which adds `rows` tokens."""

    cached: int
    rows: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """The least that a phase moves, in bytes.

    `weights`: weights, experts among them, and embedding rows.
    `kv_read`, `kv_written`: positions of the KV cache.
    """

    weights: float = 0.0
    kv_read: float = 0.0
    kv_written: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all three."""
        return self.weights + self.kv_read + self.kv_written

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.weights + other.weights, self.kv_read + other.kv_read, self.kv_written + other.kv_written)

    def __mul__(self, n: float) -> Bytes:
        return Bytes(self.weights * n, self.kv_read * n, self.kv_written * n)


def pass_bytes(
    traffic: PassTraffic, slots: Sequence[Slot], *, newest_only: bool = False, touched: float | None = None
) -> Bytes:
    """Bytes that one pass over `slots` moves; none if there are no slots.

    `newest_only`: only the last row of each slot attends. `touched`: the experts that it reached, over all layers; None
    where nobody counted them. It is then what is expected of tokens that choose independently.
    """
    if not slots:
        return Bytes()
    tokens = sum(slot.rows for slot in slots)
    routed = 0.0
    if experts := traffic.experts:
        expected = experts.layers * experts.distinct_of_slots([slot.rows for slot in slots])
        routed = experts.expert_bytes * (expected if touched is None else touched)
    return Bytes(
        weights=traffic.weight_bytes + traffic.token_bytes * tokens + routed,
        kv_read=sum(
            a.layers * a.position_bytes * attended_positions(slot, 1 if newest_only else slot.rows, a.window)
            for a in traffic.attention
            for slot in slots
        ),
        kv_written=sum(a.layers * a.position_bytes * tokens for a in traffic.attention),
    )


def attended_positions(slot: Slot, query_rows: int, window: int | None) -> int:
    """Cached positions that the last `query_rows` rows of a slot attend to, each counted once."""
    if window is None:
        return slot.cached
    return min(slot.cached, max(0, window - 1 - (slot.rows - query_rows)))


def draft_bytes(traffic: DraftTraffic, slots: Sequence[Slot], drafts: Sequence[int]) -> Bytes:
    """Bytes that it takes to draft `drafts[i]` ≥ 1 tokens in `slots[i]`, each slot as its extension pass finds it."""
    total = pass_bytes(traffic.extension, slots, newest_only=True)
    for done in range(max(drafts, default=1) - 1):
        going_on = (slot for slot, k in zip(slots, drafts, strict=True) if k > done + 1)
        total += pass_bytes(traffic.step, [Slot(slot.cached + slot.rows + done, 1) for slot in going_on])
    return total

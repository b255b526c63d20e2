"""What the passes of an engine must move through memory, at least: stated by the engine, counted here.

A floor, not a forecast: every byte of weights and of the cache that a pass needs is read once, what it adds to the
cache is written once. Activations do not count: those of a step are a few megabytes, and stay on the chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionTraffic:
    """`layers` that cache `position_bytes` (keys and values) per position each, and look at the last `window`
    positions, the row's own included; None: at all of them.
    """

    layers: int
    position_bytes: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ExpertTraffic:
    """`layers` of `count` experts of `expert_bytes` each, of which a token goes to `active`."""

    layers: int
    count: int
    active: int
    expert_bytes: int

    def distinct(self, tokens: int) -> float:
        """Expected distinct experts of a layer that `tokens` tokens reach: E·(1 − (1 − k/E)^n).

        An expert is missed by a token with probability 1 − k/E where the router spreads tokens evenly and chooses for
        each one on its own. One that prefers some experts, or sends neighbours to the same ones, reaches fewer.
        """
        return self.count * (1 - (1 - self.active / self.count) ** tokens)


@dataclass(frozen=True, slots=True)
class PassTraffic:
    """One pass of a decoder: `weight_bytes` that it reads whatever the tokens, `token_bytes` per token (its row of the
    embedding), its cache, and its experts where it has any.
    """

    weight_bytes: int
    token_bytes: int
    attention: tuple[AttentionTraffic, ...]
    experts: ExpertTraffic | None = None


@dataclass(frozen=True, slots=True)
class DraftTraffic:
    """A chain of K drafts: an `extension` over the tokens that were accepted, of which only the newest attends, then
    K − 1 `step`s of one token each.
    """

    extension: PassTraffic
    step: PassTraffic


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of an engine: the target's pass, which verifies or decodes plainly, and the draft's; None where there is none, or
    where it does not read what a draft would.
    """

    target: PassTraffic
    draft: DraftTraffic | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that a pass works on: `cached` positions before it, `rows` tokens that it adds."""

    cached: int
    rows: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a phase moves at least, in bytes: weights (experts among them) and embedding rows, cache read, cache
    written.
    """

    weights: float = 0.0
    kv_read: float = 0.0
    kv_written: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.kv_read + self.kv_written

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.weights + other.weights, self.kv_read + other.kv_read, self.kv_written + other.kv_written)

    def __mul__(self, n: float) -> Bytes:
        return Bytes(self.weights * n, self.kv_read * n, self.kv_written * n)


def pass_bytes(traffic: PassTraffic, slots: Sequence[Slot], *, newest_only: bool = False) -> Bytes:
    """What one pass over `slots` moves; nothing where there are none. `newest_only`: the last row of a slot attends
    alone.
    """
    if not slots:
        return Bytes()
    tokens = sum(slot.rows for slot in slots)
    experts = traffic.experts
    routed = experts.layers * experts.expert_bytes * experts.distinct(tokens) if experts else 0.0
    return Bytes(
        weights=traffic.weight_bytes + traffic.token_bytes * tokens + routed,
        kv_read=sum(
            a.layers * a.position_bytes * seen(slot, 1 if newest_only else slot.rows, a.window)
            for a in traffic.attention
            for slot in slots
        ),
        kv_written=sum(a.layers * a.position_bytes * tokens for a in traffic.attention),
    )


def seen(slot: Slot, asking: int, window: int | None) -> int:
    """Cached positions that the newest `asking` rows of a slot look at, all together."""
    if window is None:
        return slot.cached
    return min(slot.cached, max(0, window - 1 - (slot.rows - asking)))


def draft_bytes(traffic: DraftTraffic, slots: Sequence[Slot], drafts: Sequence[int]) -> Bytes:
    """Chains of `drafts[i]` ≥ 1 drafts for `slots[i]`, as the extension finds it."""
    total = pass_bytes(traffic.extension, slots, newest_only=True)
    for done in range(max(drafts, default=1) - 1):
        going_on = (slot for slot, k in zip(slots, drafts, strict=True) if k > done + 1)
        total += pass_bytes(traffic.step, [Slot(slot.cached + slot.rows + done, 1) for slot in going_on])
    return total

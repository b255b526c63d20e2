"""SpecPV: cycles of partial and full passes, their attention, and which cache positions are kept.

After Tan et al., arXiv 2512.02337. See backends/eagle3/docs/specpv.md.

A cache is cut into blocks of `BLOCK` positions, from position 0 on. Kept are the first blocks (the sink), those of the
middle whose keys the newest queries may like best (retrieval, by layer and key/value head), and all from the window's
first block on. Shapes as in `ops`; C blocks of a cache, R of them retrieved.

Lossy, as in the paper: each cycle drafts a chain and verifies it, in part as long as few tokens came since the last
full verification. What a partial verification accepts is emitted. A full one runs those tokens again with its own
chain, so that their keys and values are those of the whole cache from then on; the tokens stay.

Lossless: a cycle of spec-K drafts and verifies in part until it has K tokens. These are the draft of one full
verification. What that confirms is emitted, so the text is plain decoding's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.specpv import BLOCK, PartialPlan
from specgate.backends.eagle3.reference.cache import View, view
from specgate.backends.eagle3.reference.drafters import Drafter
from specgate.backends.eagle3.reference.kv_planes import Plane, plain
from specgate.backends.eagle3.reference.ops import accept, check_finite, masked_attention, target_argmax
from specgate.backends.eagle3.reference.state import Recorder, Slots
from specgate.backends.eagle3.reference.target import Look, look_at
from specgate.contract.samples.counters import (
    SPECPV_CACHED,
    SPECPV_CHECKED,
    SPECPV_COUNTED,
    SPECPV_FULL,
    SPECPV_FULL_ACCEPTED,
    SPECPV_OVERRULED,
    SPECPV_PARTIAL,
    SPECPV_PARTIAL_ACCEPTED,
    SPECPV_READ,
    SPECPV_SHORT,
)


def summaries(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(largest, smallest) of every element of the keys [B, G, S, D] of a block, float32 [B, G, C, D]; S is a multiple
    of `BLOCK`.
    """
    batch, groups, positions, size = keys.shape
    cut = keys.float().reshape(batch, groups, positions // BLOCK, BLOCK, size)
    return cut.amax(dim=3), cut.amin(dim=3)


def block_scores(queries: Tensor, largest: Tensor, smallest: Tensor) -> Tensor:
    """Score each block for `queries` [B, N, T, D] by its summaries [B, G, C, D]: float32 [B, G, C].

    For one query q it is max(q · largest, q · smallest), as in the authors' repository (Quest, arXiv 2406.10774, takes
    the larger product element by element). It is the mean over the queries, and over the heads of a group.
    """
    batch, heads, rows, size = queries.shape
    groups = largest.shape[1]
    grouped = queries.float().view(batch, groups, heads // groups * rows, size)
    scores = torch.maximum(grouped @ largest.transpose(2, 3), grouped @ smallest.transpose(2, 3))
    return scores.mean(dim=2)


def first_of_window(length: Tensor, sink: int, window: int) -> Tensor:
    """The block [B] with which the window begins, of caches with `length` [B] positions.

    It holds at least the last `window` blocks' worth of positions, and up to `BLOCK` − 1 more, so that none lies
    between it and the blocks that can be retrieved.
    """
    return (length // BLOCK - window).clamp(min=sink)


def choose(scores: Tensor, first: int, stop: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` blocks of the largest `scores` [B, G, C] among blocks `first` up to, not including, `stop` [B].

    Returns their numbers [B, G, R] and which of these are meant, bool [B, G, R]: there may be fewer than `count`. The
    lowest block wins an exact tie.
    """
    number = torch.arange(scores.shape[-1], device=scores.device)
    allowed = (number >= first) & (number < stop[:, None])
    open_to = scores.masked_fill(~allowed[:, None], -torch.inf)
    chosen = open_to.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return chosen, allowed[:, None].expand_as(scores).gather(-1, chosen)


def kept_positions(sink: int, chosen: Tensor, meant: Tensor, window: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """The positions that are kept of caches up to, not including, position `stop` [B].

    `chosen`, `meant`: as from `choose`. `window` [B]: the block with which the window begins. Returns positions
    [B, G, P] and which of these are meant, bool [B, G, P].
    """
    batch, groups, _ = chosen.shape
    device, within = chosen.device, torch.arange(BLOCK, device=chosen.device)
    sinks = torch.arange(sink * BLOCK, device=device)
    retrieved = (chosen[..., None] * BLOCK + within).flatten(2)
    longest = max(int((stop - window * BLOCK).max()), 0)
    tail = window[:, None] * BLOCK + torch.arange(longest, device=device)
    shape = (batch, groups, -1)
    positions = torch.cat((sinks.expand(shape), retrieved, tail[:, None].expand(shape)), dim=2)
    there = torch.cat(
        (
            (sinks < stop[:, None])[:, None].expand(shape),
            meant.repeat_interleave(BLOCK, dim=2),
            (tail < stop[:, None])[:, None].expand(shape),
        ),
        dim=2,
    )
    return positions, there


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


@runtime_checkable
class LooksElsewhere(Protocol):
    """A target whose layers can be told where to look."""

    def forward_looking(
        self, slots: slice, tokens: Tensor, positions: Tensor, boundaries: Sequence[int], look: Look
    ) -> tuple[Tensor, Tensor | None]:
        """As `loop.Target.forward`, of all rows, whose attention is what `look` makes of it."""

    def logits(self, stream: Tensor) -> Tensor:
        """As `loop.Target.logits`."""


class PartlyVerified(NamedTuple):
    """Tokens that a cycle has verified (`loop.Verified`), and the logits [B, K + 1, V] that decided."""

    accepted: Tensor
    tokens: Tensor
    logits: Tensor
    features: Tensor | None


class Pass(NamedTuple):
    """Output of one pass for its rows [B, T]."""

    tokens: Tensor
    logits: Tensor
    features: Tensor | None


class PartialVerifier:
    """Verifies the chains of one decode run. `prompts` [B]: lengths of the prompts, which are in the cache."""

    def __init__(self, plan: PartialPlan, model: LooksElsewhere, prompts: Tensor, recorder: Recorder) -> None:
        self.plan, self.model, self.prompts, self.recorder = plan, model, prompts, recorder
        self.verified = prompts.clone()
        """Positions [B] whose keys and values are those of full passes."""
        self.choice: Choice | None = None
        recorder.counters.update(dict.fromkeys(SPECPV_COUNTED, 0))

    def cycle(self, slots: Slots, drafter: Drafter, k: int) -> PartlyVerified:
        """One cycle of spec-`k`. Raises BackendError where logits are not finite."""
        return self._lossless_cycle(slots, drafter, k) if self.plan.lossless else self._lossy_cycle(slots, drafter, k)

    # ── lossy ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _lossy_cycle(self, slots: Slots, drafter: Drafter, k: int) -> PartlyVerified:
        drafts = drafter.chain(slots, k)
        self.recorder.phase("draft")
        if partial := self._may_be_partial(slots):
            result = self._in_part(slots, drafts, drafter)
        else:
            result = self._in_full(slots, drafts, drafter)
        accepted = accept(drafts, result.tokens)
        self._count(SPECPV_PARTIAL_ACCEPTED if partial else SPECPV_FULL_ACCEPTED, accepted, slots.active)
        if not partial:
            self.verified = slots.length + accepted + 1
        self.recorder.phase("verify")
        return PartlyVerified(accepted, *result)

    def _may_be_partial(self, slots: Slots) -> bool:
        """True if the next pass may look at a part of the cache. Something must be left out of every running slot then,
        and no slot may have `refresh` tokens that no full pass has seen.
        """
        if self.choice is None or bool((self.choice.between <= self.plan.retrieval)[slots.active].any()):
            return False
        buffered = (slots.length - self.verified)[slots.active]
        return self.plan.refresh is None or int(buffered.max()) < self.plan.refresh

    # ── lossless ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _lossless_cycle(self, slots: Slots, drafter: Drafter, k: int) -> PartlyVerified:
        if self._may_be_partial(slots):
            chain = self._provisional(slots, drafter, k)
        else:
            chain = drafter.chain(slots, k)
            self.recorder.phase("draft")
        self.verified = slots.length
        result = self._in_full(slots, chain, drafter)
        accepted = accept(chain, result.tokens)
        self._count(SPECPV_FULL_ACCEPTED, accepted, slots.active)
        self.recorder.phase("verify")
        return PartlyVerified(accepted, *result)

    def _provisional(self, slots: Slots, drafter: Drafter, k: int) -> Tensor:
        """Tokens [B, k] that follow the slots' last ones by partial verifications alone. Drafts are made and verified
        until every running slot has `k`; one that has them before waits.
        """
        chain, done = slots.last_token.new_zeros(len(slots.last_token), k), torch.zeros_like(slots.length)
        ahead = replace(slots, length=slots.length.clone(), last_token=slots.last_token.clone())
        while int(left := int((k - done)[slots.active].max())) > 0:
            drafts = drafter.chain(ahead, left)
            self.recorder.phase("draft")
            result = self._in_part(ahead, drafts, drafter)
            accepted = accept(drafts, result.tokens)
            count = torch.minimum(accepted + 1, k - done)
            self._count(SPECPV_PARTIAL_ACCEPTED, torch.minimum(accepted, count), slots.active)
            slot, row = (torch.arange(left + 1, device=count.device) < count[:, None]).nonzero(as_tuple=True)
            chain[slot, done[slot] + row] = result.tokens[slot, row]
            drafter.verified(result.features, result.tokens, count, ahead.length)
            last = result.tokens.gather(1, (count - 1).clamp(min=0)[:, None])[:, 0]
            ahead.last_token = torch.where(count > 0, last, ahead.last_token)
            ahead.length = ahead.length + count
            done = done + count
            self.recorder.phase("verify")
        return chain

    # ── passes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_part(self, slots: Slots, drafts: Tensor, drafter: Drafter) -> Pass:
        """The last tokens and `drafts` [B, K] over what is kept of the cache."""
        assert self.choice is not None
        tokens = torch.cat((slots.last_token[:, None], drafts), dim=1).clamp(min=0)
        positions = slots.length[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        result = self._run(tokens, positions, drafter, PartialLook(self.choice, positions))
        self._count(SPECPV_PARTIAL, torch.ones_like(slots.length), slots.active)
        chosen = self.choice.blocks[0][1][:, 0].sum(dim=1)
        read = slots.length - (self.choice.between - chosen) * BLOCK
        self._count(SPECPV_READ, read, slots.active)
        self._count(SPECPV_CACHED, slots.length, slots.active)
        return result

    def _in_full(self, slots: Slots, drafts: Tensor, drafter: Drafter) -> Pass:
        """Run a full pass over all of the cache: tokens that no full pass has seen yet, the last ones and `drafts` [B,
        K].
        """
        # A slot that ended may have been cut off before what was verified.
        buffered, k = (slots.length - self.verified).clamp(min=0), drafts.shape[1]
        row = torch.arange(int(buffered.max()) + k + 1, device=drafts.device).expand(len(drafts), -1)
        known = (self.verified - self.prompts)[:, None] + row  # index into what was emitted: the last token included
        text = slots.out.gather(1, known.clamp(max=slots.out.shape[1] - 1))
        drafted = (row - buffered[:, None] - 1).clamp(0, k - 1)
        tokens = torch.where(row <= buffered[:, None], text, drafts.gather(1, drafted)).clamp(min=0)
        asking = buffered[:, None] + torch.arange(k + 1, device=drafts.device)
        positions = self.verified[:, None] + row
        look = FullLook.make(self.plan, positions, asking, slots.length)
        result = self._run(tokens, positions, drafter, look)
        self.choice = look.choice
        ones = torch.ones_like(slots.length)
        self._count(SPECPV_FULL, ones, slots.active)
        self._count(SPECPV_SHORT, ones, slots.active & (look.choice.between <= self.plan.retrieval))
        overruled = ((result.tokens[:, :-1] != tokens[:, 1:]) & (row[:, :-1] < buffered[:, None])).sum(dim=1)
        self._count(SPECPV_CHECKED, buffered, slots.active)
        self._count(SPECPV_OVERRULED, overruled, slots.active)
        self._count(SPECPV_READ, self.verified, slots.active)
        self._count(SPECPV_CACHED, slots.length, slots.active)
        features = None if result.features is None else rows_of(result.features, asking)
        return Pass(rows_of(result.tokens, asking), rows_of(result.logits, asking), features)

    def _run(self, tokens: Tensor, positions: Tensor, drafter: Drafter, look: Look) -> Pass:
        every = slice(0, len(tokens))
        stream, features = self.model.forward_looking(every, tokens, positions, drafter.boundaries, look)
        logits = self.model.logits(stream)
        check_finite(logits, "the target's logits")
        return Pass(target_argmax(logits), logits, features)

    def _count(self, name: str, counts: Tensor, active: Tensor) -> None:
        self.recorder.counters[name] += int(counts[active].sum())


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """The `rows` [B, Q] of `x` [B, T, …]: [B, Q, …]."""
    return x[torch.arange(len(x), device=x.device)[:, None], rows]
